//! Where a store is: a URL, and the client for it.
//!
//! Credentials come from the environment as `object_store` reads it (AWS_*, GOOGLE_*, AZURE_*). A
//! URL with a user, a password or a query is refused: command lines are visible to all users.

use crate::directory::Directory;
use crate::error::StoreError;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
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
        let url = Url::parse(text).map_err(|error| StoreError::Location {
            shown: without_credentials(text).to_owned(),
            reason: error.to_string(),
        })?;
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
            scheme => client(scheme, &place).map_err(setup)?,
        };
        Ok(Location { store, prefix, shown })
    }
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

/// What may be repeated of a text that is no URL.
fn without_credentials(text: &str) -> &str {
    let place = text.split(['?', '#']).next().unwrap_or_default();
    place.rsplit('@').next().unwrap_or_default()
}

/// Options of the HTTP client.
fn client_options() -> ClientOptions {
    let allows_http = std::env::var("AWS_ALLOW_HTTP").is_ok_and(|value| value.eq_ignore_ascii_case("true"));
    // A layer over a slow link takes a while. `objects` gives up a store that makes no progress.
    ClientOptions::new().with_timeout_disabled().with_connect_timeout(CONNECT).with_allow_http(allows_http)
}
