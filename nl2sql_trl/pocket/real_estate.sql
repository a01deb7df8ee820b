CREATE TABLE agent (agent_id INTEGER PRIMARY KEY, name TEXT, office TEXT, experience INTEGER);
CREATE TABLE house (house_id INTEGER PRIMARY KEY, address TEXT, district TEXT, bedrooms INTEGER, area INTEGER, price INTEGER, agent_id INTEGER REFERENCES agent(agent_id));
INSERT INTO agent VALUES
(1, 'Nora Bell', 'Downtown', 12),
(2, 'Paul Aspen', 'Riverside', 4),
(3, 'Quentin Ray', 'Downtown', 8),
(4, 'Rosa Núñez', 'Hillcrest', 15),
(5, 'Stan O''Neil', 'Riverside', 2),
(6, 'Tara Singh', 'Hillcrest', 6),
(7, 'Uma Kerr', 'Downtown', 20),
(8, 'Vic Dorn', 'Riverside', NULL),
(9, 'Wanda Pike', 'Harbor', 9);
INSERT INTO house VALUES
(1, '12 Elm Street', 'Old Town', 3, 120, 310000, 1),
(2, '48 Elm Street', 'Old Town', 2, 85, 245000, 1),
(3, '7 Quay Lane', 'Docklands', 4, 160, 540000, 1),
(4, '3 Willow Road', 'Greenfield', 5, 210, 620000, 2),
(5, '91 Mill Road', 'Greenfield', 3, 135, 355000, 2),
(6, '5 Castle Hill', 'Old Town', 6, 290, 980000, 3),
(7, '22 Station Street', 'Docklands', 1, 48, 175000, 3),
(8, '10 Orchard Way', 'Sunnyside', 4, 170, 460000, 4),
(9, '14 Orchard Way', 'Sunnyside', 4, 182, 475000, 4),
(10, '2 Bishop''s Gate', 'Old Town', 3, 118, 398000, 4),
(11, '60 Canal Street', 'Docklands', 2, 74, 268000, 4),
(12, '33 Mill Road', 'Greenfield', 3, 128, 330000, 5),
(13, '8 Hilltop Road', 'Sunnyside', 5, 240, 705000, 6),
(14, '1 Beacon Street', 'Docklands', 2, 92, NULL, 6),
(15, '77 Willow Road', 'Greenfield', 4, 155, 415000, 7),
(16, '19 Station Street', 'Docklands', 1, 52, 182000, 7),
(17, '27 Castle Hill', 'Old Town', 4, 201, 660000, 7),
(18, '40 Canal Street', 'Docklands', 3, 110, 349000, 9);
