CREATE TABLE hotel (hotel_id INTEGER PRIMARY KEY, name TEXT, city TEXT, rooms INTEGER, opened_year INTEGER);
CREATE TABLE guest (guest_id INTEGER PRIMARY KEY, name TEXT, country TEXT, age INTEGER);
CREATE TABLE booking (booking_id INTEGER PRIMARY KEY, hotel_id INTEGER REFERENCES hotel(hotel_id), guest_id INTEGER REFERENCES guest(guest_id), nights INTEGER, total_cost INTEGER, check_in TEXT);
INSERT INTO hotel VALUES
(1, 'Grand Linden', 'Porto Vale', 180, 1912),
(2, 'Sea Pine Inn', 'Porto Vale', 42, 1988),
(3, 'Alpenblick', 'Steinau', 75, 1956),
(4, 'Hotel São Brás', 'Porto Vale', 96, 2004),
(5, 'The Miller''s Rest', 'Oakham', 18, 1974),
(6, 'Station Lodge', 'Steinau', 60, 1995),
(7, 'Parkside Tower', 'Merrow', 320, 2015),
(8, 'Willow House', 'Oakham', 25, NULL);
INSERT INTO guest VALUES
(1, 'Aaron Wells', 'England', 44),
(2, 'Beatriz Nunes', 'Portugal', 36),
(3, 'Cyrus Amiri', 'Canada', 52),
(4, 'Delphine Roy', 'France', 29),
(5, 'Erik Solberg', 'Norway', 61),
(6, 'Fiona O''Reilly', 'Ireland', 33),
(7, 'Gustav Holm', 'Norway', 25),
(8, 'Hye-jin Park', 'Canada', 40),
(9, 'Isabel Moya', 'Portugal', NULL),
(10, 'Jack Turner', 'England', 71),
(11, 'Kara Boyd', 'England', 19);
INSERT INTO booking VALUES
(1, 1, 1, 3, 540, '2024-02-10'),
(2, 1, 2, 2, 380, '2024-03-01'),
(3, 3, 3, 7, 910, '2024-01-20'),
(4, 2, 4, 4, 360, '2024-05-11'),
(5, 4, 5, 5, 725, '2024-06-02'),
(6, 7, 6, 1, 240, '2024-06-15'),
(7, 6, 7, 3, 285, '2024-06-21'),
(8, 7, 8, 6, 1410, '2024-07-05'),
(9, 1, 9, 10, 1750, '2024-07-12'),
(10, 3, 10, 14, 1680, '2024-07-30'),
(11, 5, 1, 2, 150, '2024-08-08'),
(12, 7, 3, 2, 470, '2024-08-19'),
(13, 2, 5, 8, 690, '2024-09-03'),
(14, 4, 8, 3, 435, '2024-09-17'),
(15, 1, 6, 1, 190, '2024-10-05'),
(16, 7, 1, 4, NULL, '2024-10-26'),
(17, 3, 2, 5, 650, '2024-11-09'),
(18, 6, 10, 2, 198, '2024-12-01'),
(19, 1, 4, 2, 395, '2024-12-20');
