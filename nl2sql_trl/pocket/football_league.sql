CREATE TABLE team (team_id INTEGER PRIMARY KEY, name TEXT, city TEXT, founded_year INTEGER, capacity INTEGER);
CREATE TABLE player (player_id INTEGER PRIMARY KEY, name TEXT, position TEXT, country TEXT, age INTEGER, goals INTEGER, team_id INTEGER REFERENCES team(team_id));
INSERT INTO team VALUES
(1, 'Harbor United', 'Seaport', 1898, 42000),
(2, 'Seaport Rovers', 'Seaport', 1921, 18500),
(3, 'Ironvale Town', 'Ironvale', 1905, 27300),
(4, 'Ridge City', 'Highridge', 1954, 31000),
(5, 'Kingsford Athletic', 'Kingsford', 1887, 55200),
(6, 'Kingsford Wolves', 'Kingsford', 1933, 22400),
(7, 'Lakeside', 'Fernmere', 2004, 9800),
(8, 'Saint Aldo', 'Highridge', 1976, 15600);
INSERT INTO player VALUES
(1, 'Marco Vidal', 'forward', 'Spain', 27, 19, 1),
(2, 'Liam O''Connor', 'midfielder', 'Ireland', 24, 6, 1),
(3, 'Per Dahl', 'defender', 'Denmark', 31, 2, 1),
(4, 'Yusuf Kaya', 'goalkeeper', 'Turkey', 29, 0, 1),
(5, 'Andre Silva', 'forward', 'Portugal', 22, 11, 2),
(6, 'Ben Foster', 'midfielder', 'England', 35, 4, 2),
(7, 'Théo Lambert', 'defender', 'France', 26, 1, 3),
(8, 'Chris Wood', 'forward', 'England', 30, 14, 3),
(9, 'Diego Ruiz', 'midfielder', 'Spain', 21, 8, 3),
(10, 'Emil Holm', 'defender', 'Denmark', 25, 3, 4),
(11, 'Faisal Amin', 'forward', 'Morocco', 28, 16, 4),
(12, 'Gary Stone', 'goalkeeper', 'England', 33, 0, 4),
(13, 'Hugo Petit', 'forward', 'France', 23, 22, 5),
(14, 'Ian Blake', 'midfielder', 'England', 27, 9, 5),
(15, 'João Prata', 'defender', 'Portugal', 32, 5, 5),
(16, 'Kofi Mensah', 'midfielder', 'Ghana', 20, 7, 5),
(17, 'Luis Ramos', 'forward', 'Spain', 36, 12, 6),
(18, 'Milan Cerny', 'defender', 'Czechia', 24, NULL, 6),
(19, 'Ben Foster', 'forward', 'England', 19, 10, 8);
