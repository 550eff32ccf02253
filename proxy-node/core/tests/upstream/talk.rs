//! Both sides of the lines that pass the reverse proxy ([`lines`](crate::lines)).

use csp_support::Random;

/// The byte at this place of any body.
pub fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

pub fn body(len: usize) -> Vec<u8> {
    (0..len).map(byte).collect()
}

/// What a client sends, and what it is to receive.
#[derive(Default)]
pub struct Talk {
    pub asks: Vec<u8>,
    pub expects: Vec<u8>,
    pub sent: usize,
}

impl Talk {
    pub fn new(random: &mut Random, requests: u64) -> Talk {
        let mut talk = Talk::default();
        for _ in 0..requests {
            let most = [1, 100, 5_000, 60_000][random.below(4) as usize];
            let len = random.below(most) as usize;
            if random.below(2) == 0 {
                talk.asks.extend(format!("get {len}\n").into_bytes());
                talk.expects.extend(format!("{len}\n").into_bytes());
                talk.expects.extend(body(len));
            } else {
                talk.asks.extend(format!("put {len}\n").into_bytes());
                talk.asks.extend(body(len));
                talk.expects.extend(format!("ok {len}\n").into_bytes());
            }
        }
        talk
    }
}

/// A connection at a member: what it has read, and what it has still to send.
#[derive(Default)]
pub struct Answering {
    pub read: usize,
    pub credited: usize,
    /// Bytes of a body that it still receives, and their number.
    puts: Option<(usize, usize)>,
    pub answer: Vec<u8>,
}

impl Answering {
    /// Reads what has arrived, up to `most` bytes.
    pub fn read(&mut self, received: &[u8], most: usize) {
        let end = received.len().min(self.read + most);
        while self.read < end {
            if let Some((left, len)) = self.puts {
                let now = left.min(end - self.read);
                let at = len - left;
                assert!(received[self.read..self.read + now].iter().copied().eq((at..at + now).map(byte)));
                (self.read, self.puts) = (self.read + now, Some((left - now, len)));
            } else {
                let Some(line) = received[self.read..end].iter().position(|b| *b == b'\n') else { return };
                let text = std::str::from_utf8(&received[self.read..self.read + line]).unwrap();
                self.read += line + 1;
                let len = text[4..].parse().unwrap();
                match text.starts_with("put ") {
                    true => self.puts = Some((len, len)),
                    false => {
                        self.answer.extend(format!("{len}\n").into_bytes());
                        self.answer.extend(body(len));
                    }
                }
            }
            if let Some((0, len)) = self.puts {
                self.puts = None;
                self.answer.extend(format!("ok {len}\n").into_bytes());
            }
        }
    }
}
