CREATE TABLE director (director_id INTEGER PRIMARY KEY, name TEXT, nationality TEXT, birth_year INTEGER);
CREATE TABLE film (film_id INTEGER PRIMARY KEY, title TEXT, genre TEXT, length INTEGER, budget INTEGER, director_id INTEGER REFERENCES director(director_id));
CREATE TABLE screening (screening_id INTEGER PRIMARY KEY, film_id INTEGER REFERENCES film(film_id), city TEXT, screening_date TEXT, tickets INTEGER);
INSERT INTO director VALUES
(1, 'Astrid Kovac', 'Croatian', 1970),
(2, 'Baptiste Noir', 'French', 1958),
(3, 'Carmen Solís', 'Spanish', 1981),
(4, 'Dan O''Malley', 'Irish', 1965),
(5, 'Eiko Tanabe', 'Japanese', 1988),
(6, 'Frida Blix', 'French', 1976),
(7, 'Goran Peric', 'Croatian', 1949),
(8, 'Hiro Endo', 'Japanese', 1992);
INSERT INTO film VALUES
(1, 'Salt Road', 'drama', 118, 4200000, 1),
(2, 'The Empty Pool', 'thriller', 104, 6800000, 1),
(3, 'Monsieur Fox', 'comedy', 92, 3500000, 2),
(4, 'Grey Harbor', 'drama', 137, 7400000, 2),
(5, 'Knife Song', 'thriller', 111, 9100000, 2),
(6, 'La Tormenta', 'thriller', 126, 12500000, 3),
(7, 'Aunt Lola''s Ghost', 'comedy', 97, 2800000, 3),
(8, 'Peat', 'drama', 143, 5300000, 4),
(9, 'Robot Summer', 'animation', 88, 15400000, 5),
(10, 'Paper Moonlight', 'animation', 94, 18900000, 5),
(11, 'The Loud House Guest', 'comedy', 101, NULL, 6),
(12, 'Glass Border', 'drama', 131, 8600000, 6),
(13, 'Last Bus North', 'drama', 109, 3900000, 7),
(14, 'Tiny Giants', 'animation', 81, 11200000, 5);
INSERT INTO screening VALUES
(1, 1, 'Zagreb', '2023-02-03', 410),
(2, 1, 'Paris', '2023-02-17', 655),
(3, 2, 'Zagreb', '2023-03-10', 520),
(4, 3, 'Paris', '2023-03-25', 880),
(5, 3, 'Madrid', '2023-04-08', 345),
(6, 4, 'Dublin', '2023-04-21', 290),
(7, 5, 'Paris', '2023-05-05', 1020),
(8, 6, 'Madrid', '2023-05-19', 1340),
(9, 6, 'Paris', '2023-06-02', 760),
(10, 8, 'Dublin', '2023-06-16', 475),
(11, 9, 'Kyoto', '2023-07-07', 1580),
(12, 9, 'Madrid', '2023-07-21', 930),
(13, 10, 'Kyoto', '2023-08-04', 1715),
(14, 12, 'Paris', '2023-09-15', NULL),
(15, 13, 'Zagreb', '2023-10-06', 230),
(16, 14, 'Kyoto', '2023-11-11', 1105),
(17, 14, 'Paris', '2023-11-25', 760),
(18, 10, 'Dublin', '2023-12-09', 615);
