CREATE TABLE museum (museum_id INTEGER PRIMARY KEY, name TEXT, city TEXT, opened_year INTEGER, visitors INTEGER);
CREATE TABLE painting (painting_id INTEGER PRIMARY KEY, title TEXT, artist TEXT, style TEXT, year INTEGER, price INTEGER, museum_id INTEGER REFERENCES museum(museum_id));
INSERT INTO museum VALUES
(1, 'Old Mint Gallery', 'Verona', 1871, 310000),
(2, 'Museum of Light', 'Ghent', 1998, 145000),
(3, 'Casa Roja', 'Seville', 1925, 220000),
(4, 'Harbor Art House', 'Ghent', 1963, 98000),
(5, 'Pavilion Nine', 'Verona', 2009, 412000),
(6, 'The King''s Collection', 'Bath', 1842, 530000),
(7, 'Espacio Norte', 'Seville', 1987, 64000),
(8, 'Little Print Room', 'Ghent', 1954, NULL);
INSERT INTO painting VALUES
(1, 'Blue Orchard', 'Mina Vos', 'impressionism', 1889, 420000, 1),
(2, 'The Ferryman', 'Luca Ferri', 'realism', 1854, 310000, 1),
(3, 'Evening Market', 'Mina Vos', 'impressionism', 1893, 515000, 1),
(4, 'Square No 4', 'Jan Krol', 'cubism', 1914, 690000, 2),
(5, 'Red Circles', 'Ida Blom', 'abstract', 1957, 275000, 2),
(6, 'Girl with Oranges', 'Pilar Soto', 'realism', 1868, 340000, 3),
(7, 'Siesta', 'Pilar Soto', 'realism', 1872, 295000, 3),
(8, 'Broken Guitar', 'Jan Krol', 'cubism', 1919, 870000, 3),
(9, 'Low Tide', 'René Colas', 'impressionism', 1881, 455000, 4),
(10, 'Static', 'Ida Blom', 'abstract', 1961, 180000, 5),
(11, 'Untitled "Grey"', 'Ida Blom', 'abstract', 1965, NULL, 5),
(12, 'City in Lines', 'Jan Krol', 'cubism', 1922, 640000, 5),
(13, 'Grain', 'Otto Hein', 'abstract', 1972, 95000, 5),
(14, 'The Archer', 'Luca Ferri', 'realism', 1849, 520000, 6),
(15, 'Winter Road', 'René Colas', 'impressionism', 1878, 610000, 6),
(16, 'Queen''s Garden', 'Luca Ferri', 'realism', 1861, 730000, 6),
(17, 'Harvest Moon', 'Otto Hein', 'abstract', 1969, 120000, 7),
(18, 'Two Boats', 'René Colas', 'impressionism', 1886, 385000, 7);
