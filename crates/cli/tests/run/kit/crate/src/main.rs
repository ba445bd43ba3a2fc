include!(concat!(env!("OUT_DIR"), "/made.rs"));

fn main() {
    println!("{} {MADE}", hello::greeting(&std::env::args().nth(1).unwrap_or_default()));
}
