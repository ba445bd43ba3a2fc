//! The class of each operation in the statistics of an image.

use engine::statistics::CallClass;

/// By the words with which errors name the operation.
pub(crate) fn class_of(operation: &str) -> CallClass {
    match operation {
        "open" | "open the directory" | "use" => CallClass::Open,
        "read" => CallClass::Read,
        "write" => CallClass::Write,
        "seek in" => CallClass::Seek,
        "read the attributes of" => CallClass::Stat,
        "list" => CallClass::List,
        "read the link" => CallClass::ReadLink,
        "create the directory" => CallClass::Make,
        "remove the file" | "remove the directory" => CallClass::Remove,
        "create the symbolic link" => CallClass::Link,
        "set the permissions of" | "set the owner of" | "set the times of" => CallClass::Attributes,
        "set the length of" | "allocate space of" => CallClass::Resize,
        "read an attribute of" | "set an attribute of" | "remove an attribute of" | "list the attributes of" => {
            CallClass::ExtendedAttributes
        }
        _ => CallClass::Other,
    }
}
