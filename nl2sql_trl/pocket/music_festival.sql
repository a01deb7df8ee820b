CREATE TABLE band (band_id INTEGER PRIMARY KEY, name TEXT, genre TEXT, country TEXT, members INTEGER);
CREATE TABLE stage (stage_id INTEGER PRIMARY KEY, name TEXT, area TEXT, capacity INTEGER);
CREATE TABLE performance (performance_id INTEGER PRIMARY KEY, band_id INTEGER REFERENCES band(band_id), stage_id INTEGER REFERENCES stage(stage_id), show_date TEXT, audience INTEGER);
INSERT INTO band VALUES
(1, 'Velvet Otters', 'rock', 'England', 4),
(2, 'Los Faroles', 'folk', 'Spain', 6),
(3, 'Nightshift Radio', 'electronic', 'Germany', 2),
(4, 'Blå Himmel', 'pop', 'Norway', 3),
(5, 'The Tin Pilots', 'rock', 'England', 5),
(6, 'Rosa Ventura', 'pop', 'Spain', 1),
(7, 'Copper Kettle', 'folk', 'Scotland', 5),
(8, 'Drum Cathedral', 'metal', 'Germany', 4),
(9, 'Paper Tigers Club', 'rock', 'Canada', 4),
(10, 'Glass Comets', 'electronic', 'Canada', 3),
(11, 'Mother''s Attic', 'folk', 'England', NULL);
INSERT INTO stage VALUES
(1, 'Main Stage', 'north field', 20000),
(2, 'River Tent', 'south field', 4000),
(3, 'Oak Stage', 'forest', 2500),
(4, 'Moon Dome', 'south field', 6500),
(5, 'Lantern Yard', 'forest', 800),
(6, 'Harbor Deck', 'waterfront', 1500);
INSERT INTO performance VALUES
(1, 1, 1, '2023-07-14', 17500),
(2, 2, 3, '2023-07-14', 1900),
(3, 3, 4, '2023-07-14', 5200),
(4, 4, 1, '2023-07-15', 14300),
(5, 5, 1, '2023-07-15', 18200),
(6, 6, 2, '2023-07-15', 3100),
(7, 7, 3, '2023-07-15', 2400),
(8, 8, 4, '2023-07-16', 6100),
(9, 9, 2, '2023-07-16', 3600),
(10, 1, 4, '2023-07-16', 6400),
(11, 3, 5, '2023-07-16', 750),
(12, 10, 2, '2023-07-14', 2800),
(13, 5, 2, '2024-07-12', NULL),
(14, 2, 5, '2024-07-12', 640),
(15, 4, 1, '2024-07-13', 16100),
(16, 1, 1, '2024-07-13', 19400),
(17, 7, 5, '2024-07-13', 780),
(18, 6, 2, '2024-07-14', 3900),
(19, 9, 1, '2024-07-14', 12700);
