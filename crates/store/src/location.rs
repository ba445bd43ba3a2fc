//! Where a store is: a URL, and the client for it.
//!
//! Credentials come from the environment as `object_store` reads it (AWS_*, GOOGLE_*, AZURE_*). A
//! URL with a user, a password or a query is refused: command lines are visible to all users.

use crate::directory::Directory;
use crate::error::StoreError;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// The schemes of locations.
const SCHEMES: [&str; 4] = ["s3", "gs", "az", "file"];
const CONNECT: Duration = Duration::from_secs(10);

/// A place for one image.
#[derive(Debug, Clone)]
pub struct Location {
    /// The client.
    pub store: Arc<dyn ObjectStore>,
    /// Below which the objects are.
    pub prefix: Path,
    /// For messages: without credentials.
    pub shown: String,
}

impl Location {
    /// Understands a URL. No request is made.
    pub fn parse(text: &str) -> Result<Location, StoreError> {
        let url =
            Url::parse(text).map_err(|error| StoreError::Location { shown: shown(text), reason: error.to_string() })?;
        let place = format!("{}://{}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path());
        let shown = place.trim_end_matches('/').to_owned();
        let refused = |reason: &str| StoreError::Location { shown: shown.clone(), reason: reason.to_owned() };
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
            return Err(refused("credentials and options are not given in a URL, but in the environment"));
        }
        if !SCHEMES.contains(&url.scheme()) {
            return Err(refused("this scheme is not known"));
        }
        let prefix = Path::from_url_path(url.path()).map_err(|error| refused(&error.to_string()))?;
        let has_host = url.host_str().is_some_and(|host| !host.is_empty());
        if has_host == (url.scheme() == "file") {
            return Err(refused("the name of the bucket, container or directory is missing"));
        }
        if url.scheme() == "file" && prefix.as_ref().is_empty() {
            return Err(refused("the root directory cannot be a store"));
        }
        let setup = |error: object_store::Error| StoreError::Setup { shown: shown.clone(), reason: error.to_string() };
        let store: Arc<dyn ObjectStore> = match url.scheme() {
            "file" => Arc::new(Directory::new()),
            scheme => {
                let unusable = |reason| StoreError::Setup { shown: shown.clone(), reason };
                check_environment(scheme).map_err(unusable)?;
                client(scheme, &place).map_err(setup)?
            }
        };
        Ok(Location { store, prefix, shown })
    }
}

/// Why a variable of the environment cannot be used: what the client would not survive, or would
/// try for long. Values are not repeated: they may be secret.
fn refusal_of(name: &str, value: &str, allows_http: bool) -> Option<String> {
    let is_text_of_lines = name.ends_with("SERVICE_ACCOUNT_KEY");
    let is_in_header = name.contains("KEY") || name.contains("TOKEN");
    if (value.chars().any(char::is_control) || is_in_header && !value.is_ascii()) && !is_text_of_lines {
        return Some(format!("{name} has a line break, or another character that no credential has"));
    }
    let is_region = name.ends_with("REGION");
    if is_region && !value.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')) {
        return Some(format!("{name} is no region: write eu-central-1"));
    }
    // Some names with this word stand for a choice, such as AZURE_USE_FABRIC_ENDPOINT.
    let is_endpoint = name.ends_with("ENDPOINT") && !name.contains("_USE_")
        || name.starts_with("AWS_ENDPOINT_URL")
        || name == "GOOGLE_BASE_URL";
    if !is_endpoint || value.is_empty() {
        return None;
    }
    let url = Url::parse(value).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let Some(url) = url else { return Some(format!("{name} is no URL: write https://HOST:PORT")) };
    if !url.username().is_empty() || url.password().is_some() {
        return Some(format!("{name} has a user or a password, which a store does not use"));
    }
    // Others are for services of the machine itself.
    let is_of_store = name.starts_with("AWS_ENDPOINT") || name == "GOOGLE_BASE_URL";
    let is_refused = is_of_store && url.scheme() == "http" && !allows_http;
    is_refused.then(|| format!("{name} is without TLS: if that is meant, set AWS_ALLOW_HTTP=true"))
}

/// Whether the client for a scheme reads a variable of the environment.
fn is_read(scheme: &str, name: &str) -> bool {
    let key = name.to_ascii_lowercase();
    match scheme {
        "s3" => name.starts_with("AWS_") && AmazonS3ConfigKey::from_str(&key).is_ok(),
        "gs" => name.starts_with("GOOGLE_") && GoogleConfigKey::from_str(&key).is_ok(),
        _ => name.starts_with("AZURE_") && AzureConfigKey::from_str(&key).is_ok(),
    }
}

/// Checks the environment of a client.
fn check_environment(scheme: &str) -> Result<(), String> {
    let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let refusals =
        variables.filter(|(name, _)| is_read(scheme, name)).filter_map(|(name, value)| match value.to_str() {
            Some(value) => refusal_of(&name, value, allows_http()),
            None => Some(format!("{name} is not UTF-8")),
        });
    refusals.min().map_or(Ok(()), Err)
}

/// Whether stores without TLS are permitted.
fn allows_http() -> bool {
    std::env::var("AWS_ALLOW_HTTP").is_ok_and(|value| value.eq_ignore_ascii_case("true"))
}

fn client(scheme: &str, place: &str) -> object_store::Result<Arc<dyn ObjectStore>> {
    // The TLS library of this process; another call may have chosen it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = client_options();
    let retry =
        RetryConfig { max_retries: 3, retry_timeout: Duration::from_secs(60), backoff: BackoffConfig::default() };
    Ok(match scheme {
        "s3" => {
            Arc::new(AmazonS3Builder::from_env().with_url(place).with_client_options(client).with_retry(retry).build()?)
        }
        "gs" => Arc::new(
            GoogleCloudStorageBuilder::from_env()
                .with_url(place)
                .with_client_options(client)
                .with_retry(retry)
                .build()?,
        ),
        _ => Arc::new(
            MicrosoftAzureBuilder::from_env().with_url(place).with_client_options(client).with_retry(retry).build()?,
        ),
    })
}

/// Whether a text names a store, and not a file.
pub fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| SCHEMES.contains(&scheme))
}

/// A location for messages, which may be wrong: without user, password and query.
pub fn shown(text: &str) -> String {
    match text.split_once("://") {
        Some((scheme, place)) => {
            let place = place.split(['?', '#']).next().unwrap_or_default();
            let (authority, path) = place.split_at(place.find('/').unwrap_or(place.len()));
            // A password may contain a slash. Then what is before it is no host with a port.
            let port = authority
                .rsplit_once(':')
                .map_or("", |(_, port)| port.trim_end_matches(|c: char| c.is_ascii_punctuation()));
            if !authority.contains('@') && !port.bytes().all(|byte| byte.is_ascii_digit()) {
                return format!("{scheme}://...");
            }
            format!("{scheme}://{}{path}", authority.rsplit('@').next().unwrap_or_default())
        }
        None => {
            let place = text.split(['?', '#']).next().unwrap_or_default();
            place.rsplit('@').next().unwrap_or_default().to_owned()
        }
    }
}

/// Options of the HTTP client.
fn client_options() -> ClientOptions {
    // A layer over a slow link takes a while. `objects` gives up a store that makes no progress.
    ClientOptions::new().with_timeout_disabled().with_connect_timeout(CONNECT).with_allow_http(allows_http())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_shows_where_a_store_is_and_no_password() {
        for (text, expected) in [
            ("s3://bucket/a@b?key=secret", "s3://bucket/a@b"),
            ("https://user:secret@host:9000/b", "https://host:9000/b"),
            ("https://user:sec/ret@host/b", "https://..."),
            ("s3://bucket:secret/b", "s3://..."),
            ("(http://host:9000):", "(http://host:9000):"),
            ("secret@no url", "no url"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn what_a_client_would_not_survive_is_refused_by_its_name_alone() {
        for (name, value, reason) in [
            ("AWS_ENDPOINT", "localhost:9000", "is no URL"),
            ("AWS_ENDPOINT_URL_S3", "user:secret@host", "is no URL"),
            ("AWS_ENDPOINT", "ftp://secret", "is no URL"),
            ("AWS_ENDPOINT", "https://user:secret@host", "a user or a password"),
            ("AWS_ENDPOINT", "http://secret:9000", "AWS_ALLOW_HTTP=true"),
            ("AWS_SESSION_TOKEN", "secret\n", "a line break"),
            ("AWS_SECRET_ACCESS_KEY", "secret\u{e4}", "another character"),
            ("AWS_REGION", "a secret", "is no region"),
            ("GOOGLE_BASE_URL", "secret", "is no URL"),
        ] {
            let refusal = refusal_of(name, value, false).unwrap();
            assert!(refusal.contains(name) && refusal.contains(reason), "{refusal}");
            assert!(!refusal.contains("secret"), "{refusal}");
        }
        for (name, value) in [
            ("AWS_ENDPOINT", "https://host:9000"),
            ("AWS_REGION", "eu-central-1"),
            ("AWS_METADATA_ENDPOINT", "http://169.254.169.254"),
            ("AZURE_USE_FABRIC_ENDPOINT", "true"),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", "{\n}\n"),
            ("AWS_SECRET_ACCESS_KEY", "a+b/c=="),
        ] {
            assert_eq!(refusal_of(name, value, false), None, "{name}");
        }
        assert_eq!(refusal_of("AWS_ENDPOINT", "http://host", true), None);
        assert!(is_read("s3", "AWS_ENDPOINT") && is_read("gs", "GOOGLE_BASE_URL") && is_read("az", "AZURE_ENDPOINT"));
        // Of other clients.
        for name in ["AWS_ENDPOINT_URL_DYNAMODB", "AWS_USE_DUALSTACK_ENDPOINT", "GOOGLE_BASE_URL", "AWS_PROFILE"] {
            assert!(!is_read("s3", name), "{name}");
        }
        assert!(!is_read("gs", "GOOGLE_CREDENTIALS"));
    }
}
