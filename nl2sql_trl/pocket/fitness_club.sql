CREATE TABLE trainer (trainer_id INTEGER PRIMARY KEY, name TEXT, specialty TEXT, experience INTEGER, hourly_rate INTEGER);
CREATE TABLE member (member_id INTEGER PRIMARY KEY, name TEXT, district TEXT, plan TEXT, age INTEGER, join_date TEXT, trainer_id INTEGER REFERENCES trainer(trainer_id));
INSERT INTO trainer VALUES
(1, 'Axel Brandt', 'boxing', 11, 55),
(2, 'Bella Fontaine', 'yoga', 6, 40),
(3, 'Cody Marsh', 'boxing', 3, 32),
(4, 'Dina Rossi', 'swimming', 14, 60),
(5, 'Eoin D''Souza', 'yoga', 9, 48),
(6, 'Fleur Amsel', 'cycling', 5, NULL),
(7, 'Gus Hale', 'swimming', 2, 30),
(8, 'Hedda Nyström', 'yoga', 18, 65);
INSERT INTO member VALUES
(1, 'Ilse Kramer', 'Central', 'premium', 42, '2021-01-15', 1),
(2, 'Jamal Brooks', 'Riverbank', 'basic', 27, '2022-03-08', 1),
(3, 'Keiko Arai', 'Central', 'premium', 35, '2020-07-21', 1),
(4, 'Luc Martel', 'Uptown', 'student', 20, '2023-09-04', 2),
(5, 'Mona El-Amin', 'Uptown', 'basic', 31, '2022-11-30', 2),
(6, 'Ned Farrow', 'Riverbank', 'basic', 58, '2019-05-12', 3),
(7, 'Olga Petrenko', 'Central', 'premium', 64, '2018-02-26', 4),
(8, 'Pete O''Shea', 'Uptown', 'basic', 46, '2021-08-17', 4),
(9, 'Rania Qasim', 'Central', 'student', 22, '2023-01-10', 4),
(10, 'Sven Holt', 'Hillside', 'premium', 39, '2020-10-02', 4),
(11, 'Tess Nolan', 'Riverbank', 'student', 19, '2023-10-19', 5),
(12, 'Uri Blum', 'Central', 'basic', NULL, '2022-06-06', 5),
(13, 'Vera Lang', 'Hillside', 'premium', 51, '2017-12-13', 8),
(14, 'Wes Tran', 'Uptown', 'basic', 29, '2023-04-24', 8),
(15, 'Xiomara Vega', 'Riverbank', 'premium', 33, '2021-11-11', 8),
(16, 'Yann Le Goff', 'Central', 'basic', 45, '2019-09-29', 8),
(17, 'Zuri Okoye', 'Uptown', 'student', 24, '2022-09-15', 8),
(18, 'Tess Nolan', 'Central', 'basic', 37, '2020-04-03', 2);
