//! Python's http.server and small Python programs.

use crate::stage::*;

#[test]
fn http_server_serves_files_over_a_channel() {
    let mut stage = Stage::new();
    let body = pattern(100_000);
    stage.write("file.bin", &body);
    let mut command = stage.command("/usr/bin/python3");
    command.args(["-u", "-m", "http.server", "18080"]);
    stage.start(command);
    for _ in 0..3 {
        let response = stage.proxy.exchange(18080, b"GET /file.bin HTTP/1.0\r\n\r\n");
        let (head, found) = split_response(&response);
        assert!(head.starts_with("HTTP/1.0 200"), "{head}");
        assert!(found == body, "{} of {} bytes", found.len(), body.len());
    }
    assert_eq!(kernel_sockets(18080), 0, "nothing of it is in the kernel");
}
