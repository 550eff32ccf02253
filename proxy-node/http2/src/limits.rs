//! Bounds of a connection.

/// Most bytes of a stream that were sent by the caller and are not in the output yet.
pub const SEND_BUFFER_MAX: usize = 32 << 10;
/// A stream that wanted room has some once no more than this is unsent.
pub const SEND_BUFFER_LOW: usize = 16 << 10;
/// Most received bytes that wait for the next turn.
pub const INPUT_MAX: usize = 32 << 10;
/// Frames that one call of `receive` takes at most.
pub const FRAMES_A_TURN: u32 = 128;
/// Bytes of output from which on nothing more is written until the caller has sent some. One frame more may
/// follow.
pub const OUTPUT_MAX: usize = 64 << 10;
/// Most interim responses (1xx) of one stream.
pub const INTERIM_MAX: u8 = csp_http::limits::INTERIM_MAX;
/// Longest trailer section in bytes, as text of HTTP/1.1.
pub const TRAILERS_LEN_MAX: usize = 8 << 10;

/// Bounds that a policy sets. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most streams that a client may have open at a time (SETTINGS_MAX_CONCURRENT_STREAMS). Of a connection
    /// to a member: most streams that are opened, if the member permits more.
    pub streams_max: u32,
    /// What a stream may send before it waits for WINDOW_UPDATE (SETTINGS_INITIAL_WINDOW_SIZE): the most that
    /// it has in memory here.
    pub stream_window: u32,
    /// What all streams together may send before they wait: the most that a connection has in memory here.
    /// At least twice the window of a stream, so that one stream alone never stops the others.
    pub connection_window: u32,
    /// Longest list of fields, 32 more for each field (SETTINGS_MAX_HEADER_LIST_SIZE). A longer one is
    /// answered with 431, one four times as long ends the connection. At most 60,000.
    pub header_list_max: u32,
    /// Most fields of a head, where cookies count as one. At most [`csp_http::limits::FIELDS_MAX`].
    pub fields_max: usize,
    /// Longest payload of a frame (SETTINGS_MAX_FRAME_SIZE), from 16,384 to 16,777,215.
    pub frame_len_max: u32,
    /// Most resets by the peer that can be saved up. A completed stream earns one.
    pub resets_max: u32,
    /// Resets that a second earns.
    pub resets_per_second: u32,
    /// Most frames without payload for the application (PING, SETTINGS, PRIORITY, WINDOW_UPDATE, GOAWAY,
    /// unknown ones) that can be saved up. Data in either direction earn some.
    pub control_frames_max: u32,
    /// Such frames that a second earns.
    pub control_frames_per_second: u32,
    /// Most streams that the peer has reset before they were accepted here.
    pub pending_resets_max: usize,
    /// Most streams over the life of a connection that end by a fault of the peer, or were opened beyond
    /// `streams_max`.
    pub faults_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            streams_max: 100,
            stream_window: 64 << 10,
            connection_window: 1 << 20,
            header_list_max: 32 << 10,
            fields_max: 100,
            frame_len_max: 16 << 10,
            resets_max: 200,
            resets_per_second: 10,
            control_frames_max: 1_000,
            control_frames_per_second: 100,
            pending_resets_max: 20,
            faults_max: 256,
        }
    }
}

impl Limits {
    /// Returns the limits within what the protocol permits.
    #[must_use]
    pub fn bounded(self) -> Self {
        const WINDOW_MAX: u32 = (1 << 31) - 1;
        let stream_window = self.stream_window.clamp(1, WINDOW_MAX / 2);
        Limits {
            streams_max: self.streams_max.max(1),
            stream_window,
            connection_window: self.connection_window.clamp(stream_window * 2, WINDOW_MAX).max(65_535),
            header_list_max: self.header_list_max.clamp(1, 60_000),
            fields_max: self.fields_max.clamp(1, csp_http::limits::FIELDS_MAX),
            frame_len_max: self.frame_len_max.clamp(1 << 14, (1 << 24) - 1),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_stay_within_the_protocol() {
        let wild = Limits {
            streams_max: 0,
            stream_window: u32::MAX,
            connection_window: 0,
            header_list_max: u32::MAX,
            fields_max: 0,
            frame_len_max: 1,
            ..Limits::default()
        };
        let limits = wild.bounded();
        assert_eq!((limits.streams_max, limits.fields_max, limits.frame_len_max), (1, 1, 16_384));
        assert!(limits.stream_window <= limits.connection_window / 2);
        assert!(limits.connection_window < 1 << 31);
        assert_eq!(Limits::default().bounded(), Limits::default());
    }
}
