CREATE TABLE author (author_id INTEGER PRIMARY KEY, name TEXT, country TEXT, birth_year INTEGER);
CREATE TABLE book (book_id INTEGER PRIMARY KEY, title TEXT, genre TEXT, pages INTEGER, publish_year INTEGER, author_id INTEGER REFERENCES author(author_id));
INSERT INTO author VALUES
(1, 'Elin Forsberg', 'Sweden', 1951),
(2, 'Patrick O''Dowd', 'Ireland', 1968),
(3, 'João Medeiros', 'Brazil', 1943),
(4, 'Hana Sato', 'Japan', 1979),
(5, 'Amélie Roux', 'France', 1985),
(6, 'Karl Weiss', 'Germany', NULL),
(7, 'Rita Alves', 'Brazil', 1990),
(8, 'Nils Berg', 'Sweden', 1962),
(9, 'Claire Dubois', 'France', 1974),
(10, 'Ken Mori', 'Japan', 1958),
(11, 'Olaf Lind', 'Sweden', 1935);
INSERT INTO book VALUES
(1, 'The Silent Harbor', 'mystery', 312, 1994, 1),
(2, 'Winter Letters', 'romance', 248, 2001, 1),
(3, 'Stone Bridge', 'history', 540, 2008, 1),
(4, 'A Fool''s Errand', 'comedy', 198, 2003, 2),
(5, 'Green Hills', 'history', 421, 1999, 2),
(6, 'River of Salt', 'mystery', 365, 1987, 3),
(7, 'The Last Tram', 'mystery', 277, 1979, 3),
(8, 'Paper Lanterns', 'romance', 233, 2012, 4),
(9, 'Machine Garden', 'science fiction', 489, 2018, 4),
(10, 'Echo Station', 'science fiction', 402, 2020, 4),
(11, 'Café at Dawn', 'romance', 187, 2016, 5),
(12, 'The Clockmaker', 'history', 365, 2009, 6),
(13, 'Night "Express"', 'mystery', NULL, 2011, 7),
(14, 'Small Kings', 'comedy', 154, 2019, 7),
(15, 'Northern Lights Map', 'science fiction', 611, 1998, 8),
(16, 'The Ninth Door', 'mystery', 344, 2005, 8),
(17, 'Salt and Honey', 'romance', 298, 2014, 9),
(18, 'Iron Coast', 'history', 702, 2001, 9),
(19, 'The Glass Orchard', 'mystery', 259, 2022, 4);
