pub fn greeting(who: &str) -> String {
    format!("hello {who}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_greets() {
        std::fs::write("greeted", super::greeting("file")).unwrap();
        assert_eq!(std::fs::read_to_string("greeted").unwrap(), "hello file");
    }
}
