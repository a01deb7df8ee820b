CREATE TABLE airport (airport_id INTEGER PRIMARY KEY, name TEXT, country TEXT, runways INTEGER, opened_year INTEGER);
CREATE TABLE flight (flight_id INTEGER PRIMARY KEY, flight_number TEXT, airline TEXT, destination TEXT, distance INTEGER, price REAL, airport_id INTEGER REFERENCES airport(airport_id));
INSERT INTO airport VALUES
(1, 'Lindholm International', 'Sweden', 3, 1962),
(2, 'Porto Azul', 'Portugal', 2, 1951),
(3, 'Grand Mesa', 'Mexico', 4, 1978),
(4, 'São Mateus Field', 'Brazil', 1, 1989),
(5, 'Kestrel Bay', 'Ireland', 2, 1944),
(6, 'Sakura East', 'Japan', 5, 1994),
(7, 'Nordkap Regional', 'Sweden', 1, 2003),
(8, 'Valle Sol', 'Mexico', 2, 1985),
(9, 'Hokuto', 'Japan', 3, NULL),
(10, 'Elk Lake', 'Sweden', 1, 2011);
INSERT INTO flight VALUES
(1, 'NX101', 'Norjet', 'Lisbon', 2990, 189.0, 1),
(2, 'NX204', 'Norjet', 'Dublin', 1630, 120.5, 1),
(3, 'BA310', 'Blue Arrow', 'Tokyo', 8170, 640.0, 1),
(4, 'SC118', 'SolCruise', 'Madrid', 505, 59.9, 2),
(5, 'BA422', 'Blue Arrow', 'Dublin', 1640, 135.0, 2),
(6, 'SC900', 'SolCruise', 'Lisbon', 8680, 710.0, 3),
(7, 'SC905', 'SolCruise', 'Bogotá', 3160, 275.0, 3),
(8, 'AE077', 'Aero Este', 'Madrid', 9070, 698.0, 3),
(9, 'AE512', 'Aero Este', 'Lisbon', 7310, NULL, 4),
(10, 'BA118', 'Blue Arrow', 'London', 465, 75.0, 5),
(11, 'NX333', 'Norjet', 'Oslo', 1270, 99.0, 5),
(12, 'KT001', 'Kita Air', 'Osaka', 400, 88.0, 6),
(13, 'KT015', 'Kita Air', 'London', 9560, 830.0, 6),
(14, 'KT022', 'Kita Air', 'Oslo', 8400, 765.0, 6),
(15, 'NX410', 'Norjet', 'Oslo', 850, 79.0, 7),
(16, 'SC221', 'SolCruise', 'Bogotá', 3300, 260.0, 8),
(17, 'AE640', 'Aero Este', 'Tokyo', 11300, 905.0, 8),
(18, 'KT044', 'Kita Air', 'Tokyo', 830, 99.0, 9),
(19, 'BA777', 'Blue Arrow', 'Tokyo', 9590, 815.0, 5);
