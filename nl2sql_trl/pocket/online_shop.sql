CREATE TABLE customer (customer_id INTEGER PRIMARY KEY, name TEXT, city TEXT, age INTEGER);
CREATE TABLE product (product_id INTEGER PRIMARY KEY, name TEXT, category TEXT, price REAL, stock INTEGER);
CREATE TABLE purchase (purchase_id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customer(customer_id), product_id INTEGER REFERENCES product(product_id), quantity INTEGER, purchase_date TEXT);
INSERT INTO customer VALUES
(1, 'Alice Morel', 'Lyon', 34),
(2, 'Bruno Costa', 'Porto', 51),
(3, 'Carla D''Angelo', 'Turin', 28),
(4, 'Dmitri Volkov', 'Lyon', 45),
(5, 'Emma Schulz', 'Bremen', 23),
(6, 'Farid Nasser', 'Lyon', 39),
(7, 'Gabi Stein', 'Bremen', 62),
(8, 'Helena Prado', 'Porto', NULL),
(9, 'Ivan Novak', 'Turin', 31),
(10, 'Emma Schulz', 'Lyon', 57);
INSERT INTO product VALUES
(1, 'desk lamp', 'home', 34.9, 120),
(2, 'wool blanket', 'home', 59.0, 45),
(3, 'chess set', 'toys', 27.5, 60),
(4, 'puzzle 1000', 'toys', 15.0, 200),
(5, 'running shoes', 'sports', 89.9, 75),
(6, 'yoga mat', 'sports', 25.0, 140),
(7, 'wireless mouse', 'electronics', 19.9, 310),
(8, 'headphones', 'electronics', 129.0, 52),
(9, 'tablet', 'electronics', 349.0, 18),
(10, '27" monitor', 'electronics', 219.0, NULL),
(11, 'tea pot', 'home', 22.0, 45),
(12, 'tennis racket', 'sports', 110.0, 33);
INSERT INTO purchase VALUES
(1, 1, 1, 2, '2024-01-05'),
(2, 1, 9, 1, '2024-01-19'),
(3, 2, 5, 1, '2024-01-22'),
(4, 3, 4, 3, '2024-02-02'),
(5, 3, 3, 1, '2024-02-02'),
(6, 4, 8, 1, '2024-02-11'),
(7, 4, 7, 4, '2024-02-28'),
(8, 5, 6, 2, '2024-03-03'),
(9, 6, 2, 1, '2024-03-09'),
(10, 6, 10, 2, '2024-03-15'),
(11, 6, 7, 1, '2024-03-21'),
(12, 7, 11, 2, '2024-04-04'),
(13, 7, 1, 1, '2024-04-12'),
(14, 9, 5, 2, '2024-04-20'),
(15, 1, 7, 5, '2024-05-01'),
(16, 2, 4, 6, '2024-05-17'),
(17, 8, 8, 1, '2024-05-23'),
(18, 1, 3, 2, '2024-06-08');
