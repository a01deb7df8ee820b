CREATE TABLE department (department_id INTEGER PRIMARY KEY, name TEXT, building TEXT, beds INTEGER, budget INTEGER);
CREATE TABLE doctor (doctor_id INTEGER PRIMARY KEY, name TEXT, degree TEXT, salary INTEGER, hire_date TEXT, department_id INTEGER REFERENCES department(department_id));
INSERT INTO department VALUES
(1, 'Cardiology', 'North Wing', 42, 3100000),
(2, 'Pediatrics', 'South Wing', 58, 2400000),
(3, 'Radiology', 'North Wing', 12, 1900000),
(4, 'Neurology', 'East Wing', 30, 2750000),
(5, 'Surgery', 'North Wing', 64, 4600000),
(6, 'Dermatology', 'South Wing', 8, 650000),
(7, 'Oncology', 'East Wing', 36, 3850000),
(8, 'Pathology', 'South Wing', NULL, 980000);
INSERT INTO doctor VALUES
(1, 'Ada Nwosu', 'MD', 148000, '2011-03-01', 1),
(2, 'Brian O''Leary', 'MD', 132500, '2015-09-14', 1),
(3, 'Chiara Conti', 'PhD', 121000, '2018-01-08', 2),
(4, 'David Roth', 'MD', 99500, '2021-06-21', 2),
(5, 'Esra Demir', 'MBBS', 118000, '2016-11-02', 2),
(6, 'Felix Braun', 'MD', 140000, '2009-05-18', 3),
(7, 'Grace Hill', 'PhD', 156500, '2008-02-11', 4),
(8, 'Hugo Marín', 'MBBS', 127000, '2014-07-07', 4),
(9, 'Irina Petrova', 'MD', 201000, '2005-10-30', 5),
(10, 'Jonas Falk', 'MD', 187500, '2010-12-13', 5),
(11, 'Kim Tran', 'MBBS', 143000, '2017-04-25', 5),
(12, 'Laura Mendes', 'MD', 109000, '2019-08-19', 6),
(13, 'Mateo Cruz', 'PhD', NULL, '2022-02-14', 7),
(14, 'Nadia Haddad', 'MD', 172000, '2012-01-23', 7),
(15, 'Owen Price', 'MBBS', 118000, '2020-03-16', 7),
(16, 'Paula Reis', 'MD', 164000, '2013-06-03', 5),
(17, 'Grace Hill', 'MD', 104500, '2021-10-04', 1);
