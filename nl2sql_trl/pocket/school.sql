CREATE TABLE teacher (teacher_id INTEGER PRIMARY KEY, name TEXT, subject TEXT, salary INTEGER);
CREATE TABLE course (course_id INTEGER PRIMARY KEY, title TEXT, credits INTEGER, room TEXT, teacher_id INTEGER REFERENCES teacher(teacher_id));
CREATE TABLE student (student_id INTEGER PRIMARY KEY, name TEXT, town TEXT, age INTEGER);
CREATE TABLE enrollment (enrollment_id INTEGER PRIMARY KEY, student_id INTEGER REFERENCES student(student_id), course_id INTEGER REFERENCES course(course_id), score INTEGER);
INSERT INTO teacher VALUES
(1, 'Ruth Keller', 'mathematics', 52000),
(2, 'Samuel Ortiz', 'history', 47500),
(3, 'Tina Bauer', 'biology', 49800),
(4, 'Umberto Leone', 'music', 41000),
(5, 'Vera Ilić', 'mathematics', 56500),
(6, 'Will D''Arcy', 'history', 45200),
(7, 'Xenia Pappas', 'biology', 61000),
(8, 'Yara Boone', 'mathematics', 47500);
INSERT INTO course VALUES
(1, 'Algebra', 6, 'A1', 1),
(2, 'Geometry', 4, 'A1', 1),
(3, 'Ancient Rome', 3, 'B2', 2),
(4, 'Modern Europe', 5, 'B2', 2),
(5, 'Cell Biology', 6, 'Lab', 3),
(6, 'Choir', 2, 'Hall', 4),
(7, 'Statistics', 5, 'A2', 5),
(8, 'Calculus', 8, 'A2', 5),
(9, 'Ecology', 4, 'Lab', 7),
(10, 'Genetics', 7, 'Lab', 7),
(11, 'World Maps', 3, 'B1', 6);
INSERT INTO student VALUES
(1, 'Anya Frost', 'Westham', 16),
(2, 'Bo Larsen', 'Westham', 17),
(3, 'Cleo Marsh', 'Northgate', 15),
(4, 'Dev Patel', 'Northgate', 18),
(5, 'Elsa Brandt', 'Coldwell', 16),
(6, 'Finn O''Hara', 'Westham', 14),
(7, 'Gia Romano', 'Coldwell', 17),
(8, 'Hal Young', 'Northgate', NULL),
(9, 'Isla Reed', 'Westham', 19),
(10, 'Bo Larsen', 'Brookton', 15);
INSERT INTO enrollment VALUES
(1, 1, 1, 88),
(2, 1, 5, 73),
(3, 1, 6, 95),
(4, 2, 1, 64),
(5, 2, 3, 79),
(6, 3, 2, 91),
(7, 3, 9, 82),
(8, 4, 8, 58),
(9, 4, 10, 70),
(10, 4, 7, 77),
(11, 5, 4, 85),
(12, 5, 6, 90),
(13, 6, 2, 49),
(14, 7, 7, 93),
(15, 7, 10, 86),
(16, 7, 1, 97),
(17, 8, 3, 66),
(18, 8, 5, NULL),
(19, 9, 8, 74),
(20, 1, 7, 81);
