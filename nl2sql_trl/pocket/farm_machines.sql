CREATE TABLE farm (farm_id INTEGER PRIMARY KEY, name TEXT, region TEXT, hectares INTEGER, workers INTEGER);
CREATE TABLE machine (machine_id INTEGER PRIMARY KEY, model TEXT, type TEXT, brand TEXT, power INTEGER, price INTEGER, farm_id INTEGER REFERENCES farm(farm_id));
INSERT INTO farm VALUES
(1, 'Sunny Acres', 'Southplain', 240, 12),
(2, 'Larkspur Farm', 'Westdale', 95, 5),
(3, 'Three Oaks', 'Westdale', 310, 18),
(4, 'Gómez Fields', 'Southplain', 520, 31),
(5, 'Hollow Creek', 'Northmoor', 60, 3),
(6, 'Widow''s Peak', 'Northmoor', 145, 8),
(7, 'Barley Bottom', 'Southplain', 185, NULL),
(8, 'Crow Valley', 'Westdale', 405, 22),
(9, 'Stonebarn', 'Eastfen', 130, 8);
INSERT INTO machine VALUES
(1, 'TX 90', 'tractor', 'Ferrol', 90, 48000, 1),
(2, 'TX 140', 'tractor', 'Ferrol', 140, 82000, 1),
(3, 'Reaper 5', 'harvester', 'Kornfeld', 260, 195000, 1),
(4, 'Mule 60', 'tractor', 'Brandtson', 60, 29500, 2),
(5, 'Mule 75', 'tractor', 'Brandtson', 75, 34000, 3),
(6, 'Reaper 7', 'harvester', 'Kornfeld', 330, 268000, 3),
(7, 'SeedStar', 'planter', 'Ferrol', 45, 41500, 3),
(8, 'Reaper 9', 'harvester', 'Kornfeld', 410, 355000, 4),
(9, 'TX 220', 'tractor', 'Ferrol', 220, 131000, 4),
(10, 'MistMaster', 'sprayer', 'Aguila', 70, 53000, 4),
(11, 'SeedStar XL', 'planter', 'Ferrol', 65, 58500, 4),
(12, 'Mule 50', 'tractor', 'Brandtson', 50, 21000, 5),
(13, 'MistMaster', 'sprayer', 'Aguila', 70, 46500, 6),
(14, 'TX 110', 'tractor', 'Ferrol', 110, 64000, 6),
(15, 'Bulle 85', 'tractor', 'Kornfeld', 85, 57000, 8),
(16, 'Reaper 6', 'harvester', 'Kornfeld', 290, NULL, 8),
(17, 'Fog 40', 'sprayer', 'Brandtson', 40, 25500, 8),
(18, 'Mule 95', 'tractor', 'Brandtson', 95, 43000, 9);
