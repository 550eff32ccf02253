//! A generation as etcd holds it: whole, or a header whose record is compressed and divided into chunks.
//!
//! ```text
//!  /csp/v1/policy/generations/7   {"generation": 7, …, "policy": {…}}               up to 16 KiB
//!                            or   {"generation": 7, …, "packed": {"chunks": 2, …}}
//!  /csp/v1/policy-chunks/HASH/0   zlib (RFC 1950) of the whole record, up to 512 KiB a chunk
//!  /csp/v1/policy-chunks/HASH/1
//! ```
//! etcd refuses requests above 1.5 MiB, and a node that follows the policy reads all generations: so large
//! ones are not among them, and a node reads the chunks of those two that it needs. Chunks are named by the
//! policy's hash: two managers that publish at once write the same under the same name, or different things
//! under different names.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::{Deserialize, Serialize};

use super::GenerationRecord;
use crate::signatures::PolicySignature;

/// Largest record that is stored directly at its key, in bytes.
const WHOLE_LEN_MAX: usize = 16 << 10;
/// Largest chunk in bytes: a third of what etcd accepts in a request.
pub(crate) const CHUNK_LEN_MAX: usize = 512 << 10;
/// Largest record that is unpacked, in bytes of JSON.
const RECORD_LEN_MAX: usize = 64 << 20;
/// Most chunks of a record.
const CHUNKS_MAX: u32 = 128;

/// The value at a generation's key when its record is large.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Header {
    /// As [`GenerationRecord::generation`].
    pub(crate) generation: u64,
    /// As [`GenerationRecord::created_unix_ms`].
    pub(crate) created_unix_ms: u64,
    /// As [`GenerationRecord::hash`].
    pub(crate) hash: String,
    /// Number of services.
    pub(crate) services: usize,
    /// Number and length of the chunks.
    pub(crate) packed: Packed,
    /// As [`GenerationRecord::signature`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) signature: Option<PolicySignature>,
}

/// The packed record of a [`Header`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Packed {
    /// Number of chunks.
    pub(crate) chunks: u32,
    /// Length of the record as JSON, in bytes.
    pub(crate) len: usize,
}

/// What a generation's key holds.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Entry {
    /// The record itself, with its JSON text.
    Whole(String),
    /// A header, with the chunks to store.
    Packed(Header, Vec<Vec<u8>>),
}

/// Returns what to store for a record.
pub(crate) fn pack(record: &GenerationRecord) -> Entry {
    // Strings, numbers and lists only, so that serialisation cannot fail.
    let text = serde_json::to_string(record).unwrap_or_default();
    if text.len() <= WHOLE_LEN_MAX {
        return Entry::Whole(text);
    }
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing to memory cannot fail.
    let written = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish());
    let chunks: Vec<Vec<u8>> =
        written.unwrap_or_default().chunks(CHUNK_LEN_MAX).map(<[u8]>::to_vec).collect();
    let header = Header {
        generation: record.generation,
        created_unix_ms: record.created_unix_ms,
        hash: record.hash.clone(),
        services: record.policy.services.len(),
        packed: Packed { chunks: chunks.len() as u32, len: text.len() },
        signature: record.signature.clone(),
    };
    Entry::Packed(header, chunks)
}

/// Returns the header if `text` is one.
pub(crate) fn header(text: &str) -> Option<Header> {
    serde_json::from_str(text).ok()
}

impl Header {
    /// Returns the number of chunks to read; an error if the header is invalid.
    pub(crate) fn chunks(&self) -> Result<u32, String> {
        let Packed { chunks, len } = self.packed;
        let right = (1..=CHUNKS_MAX).contains(&chunks) && len <= RECORD_LEN_MAX && is_hash(&self.hash);
        right.then_some(chunks).ok_or_else(|| format!("generation {}: its header is wrong", self.generation))
    }

    /// Assembles the record and checks it, as [`GenerationRecord::from_json`] does.
    pub(crate) fn unpack(&self, chunks: &[Vec<u8>]) -> Result<GenerationRecord, String> {
        let origin = format!("generation {}", self.generation);
        self.chunks()?;
        let mut text = String::new();
        let packed = chunks.concat();
        // One byte more than the header states reveals a longer record.
        let read =
            ZlibDecoder::new(packed.as_slice()).take(self.packed.len as u64 + 1).read_to_string(&mut text);
        read.map_err(|error| format!("{origin}: cannot be unpacked: {error}"))?;
        if text.len() != self.packed.len {
            return Err(format!("{origin}: unpacks to another length than {} bytes", self.packed.len));
        }
        // The chunks belong to the first generation with this policy: number, time and signature come from
        // the header.
        let mut record = GenerationRecord::from_json(&text, &origin)?;
        if record.hash != self.hash {
            return Err(format!(
                "{origin}: the hash is {}, not {} as its header says",
                record.hash, self.hash
            ));
        }
        (record.generation, record.created_unix_ms) = (self.generation, self.created_unix_ms);
        record.signature.clone_from(&self.signature);
        Ok(record)
    }
}

/// Returns whether `text` is a hash. Only such a text may become part of keys and of signed statements.
pub(crate) fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use csp_policy::Policy;

    use super::*;

    fn record(services: usize) -> GenerationRecord {
        let entry = |n: usize| {
            let (high, low) = (n / 200 + 1, n % 200 + 1);
            format!(
                "  - {{name: s{n}, vip: 10.76.{high}.{low}, port: 80, pool: [{{node: an-{n}, port: 80}}]}}\n"
            )
        };
        let entries: String = (0..services).map(entry).collect();
        let text = format!("apiVersion: csp/v1\nservices:\n{entries}");
        GenerationRecord::new(7, Policy::parse_yaml(&text, "test.yaml").unwrap())
    }

    #[test]
    fn a_small_record_stands_whole_and_a_large_one_comes_back_from_its_chunks() {
        let small = record(3);
        let Entry::Whole(text) = pack(&small) else { panic!("a small record is packed") };
        assert_eq!(header(&text), None);
        assert_eq!(GenerationRecord::from_json(&text, "x"), Ok(small));
        let large = record(1000);
        let Entry::Packed(of_large, chunks) = pack(&large) else { panic!("a large record is whole") };
        let text = serde_json::to_string(&of_large).unwrap();
        assert!(text.len() < 300 && header(&text).as_ref() == Some(&of_large), "{text}");
        assert_eq!(of_large.unpack(&chunks), Ok(large.clone()));
        // The same policy again, as a later generation.
        let again = Header { generation: 9, created_unix_ms: 1, ..of_large };
        assert_eq!(
            again.unpack(&chunks),
            Ok(GenerationRecord { generation: 9, created_unix_ms: 1, ..large })
        );
    }

    #[test]
    fn what_does_not_fit_its_header_is_refused() {
        let Entry::Packed(good, chunks) = pack(&record(1000)) else { panic!("packed") };
        let refused =
            |header: &Header, chunks: &[Vec<u8>]| assert!(header.unpack(chunks).is_err(), "{header:?}");
        refused(&good, &[]);
        refused(&good, &[chunks[0][..chunks[0].len() / 2].to_vec()]);
        refused(&good, &[vec![0x55; 1000]]);
        for len in [good.packed.len - 1, good.packed.len + 1, RECORD_LEN_MAX + 1] {
            refused(&Header { packed: Packed { len, ..good.packed }, ..good.clone() }, &chunks);
        }
        refused(&Header { hash: "0".repeat(64), ..good.clone() }, &chunks);
        refused(&Header { hash: "../../../leader".to_owned(), ..good.clone() }, &chunks);
        refused(&Header { packed: Packed { chunks: 0, ..good.packed }, ..good }, &chunks);
    }
}
