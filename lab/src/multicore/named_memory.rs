//! Names of memory areas, for reports.

use std::ops::Range;

/// A named memory area.
#[derive(Debug, Clone)]
pub struct NamedMemory {
    /// Address range.
    pub range: Range<u64>,
    /// Name of its content.
    pub name: String,
    /// Bytes of an element in an array; zero for a single object.
    pub stride: u64,
    /// Offsets of fields in an element, ascending, with their names.
    pub fields: Vec<(u64, &'static str)>,
}

impl NamedMemory {
    /// The area of one object.
    pub fn of<T>(name: impl Into<String>, thing: &T) -> NamedMemory {
        NamedMemory::at(name, thing as *const T as u64, size_of::<T>() as u64)
    }

    /// The area of some bytes.
    pub fn at(name: impl Into<String>, start: u64, bytes: u64) -> NamedMemory {
        NamedMemory { range: start..start + bytes, name: name.into(), stride: 0, fields: Vec::new() }
    }

    /// Declares the area an array of elements of a size.
    pub fn each(self, stride: u64) -> NamedMemory {
        NamedMemory { stride, ..self }
    }

    /// Adds fields.
    pub fn fields(self, fields: &[(usize, &'static str)]) -> NamedMemory {
        let mut fields: Vec<(u64, &'static str)> =
            fields.iter().map(|(offset, name)| (*offset as u64, *name)).collect();
        fields.sort_unstable();
        NamedMemory { fields, ..self }
    }

    fn describe(&self, address: u64) -> String {
        let offset = address - self.range.start;
        let (element, within) = match offset.checked_div(self.stride) {
            Some(index) => (format!("{} {index}", self.name), offset % self.stride),
            None => (self.name.clone(), offset),
        };
        match self.fields.iter().rev().find(|(start, _)| *start <= within) {
            Some((_, field)) => format!("{field} of {element}"),
            None => element,
        }
    }
}

/// Describes an address by the first area that contains it.
pub fn describe(named_memory: &[NamedMemory], address: u64) -> String {
    match named_memory.iter().find(|memory| memory.range.contains(&address)) {
        Some(memory) => memory.describe(address),
        None => "a word of the heap".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_named_by_its_place_element_and_field() {
        let table = NamedMemory::at("entry", 1000, 400).each(100).fields(&[(0, "lock"), (8, "count"), (64, "name")]);
        let named_memory = [NamedMemory::at("header", 1000, 8), table];
        for (address, name) in [
            (1000, "header"),
            (1008, "count of entry 0"),
            (1070, "name of entry 0"),
            (1104, "lock of entry 1"),
            (1400, "a word of the heap"),
        ] {
            assert_eq!(describe(&named_memory, address), name);
        }
    }
}
