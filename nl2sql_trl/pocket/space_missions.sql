CREATE TABLE agency (agency_id INTEGER PRIMARY KEY, name TEXT, country TEXT, founded_year INTEGER, staff INTEGER);
CREATE TABLE mission (mission_id INTEGER PRIMARY KEY, name TEXT, destination TEXT, launch_date TEXT, duration INTEGER, cost INTEGER, agency_id INTEGER REFERENCES agency(agency_id));
INSERT INTO agency VALUES
(1, 'Helios Space Office', 'Germany', 1969, 4200),
(2, 'Orion Directorate', 'Canada', 1987, 1850),
(3, 'Kaze Space Center', 'Japan', 1971, 3100),
(4, 'Agência Cruzeiro', 'Brazil', 1994, 920),
(5, 'Polar Launch Group', 'Canada', 2006, 640),
(6, 'Rhine Orbital', 'Germany', 2012, 410),
(7, 'Tsuki Institute', 'Japan', 1959, 1400),
(8, 'Andes Probe Society', 'Chile', 2017, NULL);
INSERT INTO mission VALUES
(1, 'Dawnlight', 'Moon', '1998-04-12', 14, 320, 1),
(2, 'Red Pilgrim', 'Mars', '2003-08-30', 410, 1450, 1),
(3, 'Long Ear', 'Jupiter', '2009-01-17', 2150, 2100, 1),
(4, 'Icebird', 'Moon', '2001-11-05', 21, 280, 2),
(5, 'Rust Hopper', 'Mars', '2011-06-22', 385, 990, 2),
(6, 'Suzume', 'Moon', '1995-02-09', 9, 195, 3),
(7, 'Asahi 2', 'Venus', '2007-05-14', 260, 740, 3),
(8, 'Asahi 3', 'Venus', '2014-10-03', 275, 815, 3),
(9, 'Kin''iro', 'Mars', '2018-07-27', 430, 1320, 3),
(10, 'Estrela', 'Moon', '2015-03-19', 12, 150, 4),
(11, 'Saci', 'Venus', '2021-09-08', 240, 560, 4),
(12, 'Snow Goose', 'Moon', '2013-12-01', 18, 210, 5),
(13, 'Far Drum', 'Jupiter', '2020-02-25', NULL, 1875, 5),
(14, 'Lorelei', 'Moon', '2019-05-30', 25, 340, 6),
(15, 'Yoru', 'Mars', '2016-01-11', 395, 1180, 7),
(16, 'Hoshi', 'Moon', '1989-09-21', 7, 120, 7),
(17, 'Tide Watcher', 'Saturn', '2022-11-16', 3300, 2600, 1);
