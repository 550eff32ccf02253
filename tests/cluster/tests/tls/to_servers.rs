//! TLS towards servers: nginx outside, with certificates that are right, for another name, of another
//! authority and of another time; a server that asks the proxy for its own; HTTP/1.1 and HTTP/2.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use csp_cluster::configs::CLIENT_ADDRESS;
use csp_cluster::testing::SERVING_DEADLINE;
use csp_cluster::{Cluster, Tier, VIP, wait_until};

/// Names of services, the port of each at the VIP, that of its servers, and what is said of their state.
const WRONG: [(&str, u16, u16, &str); 3] = [
    ("behind-other-name", 8_902, 18_902, "TLS: its certificate is for another name"),
    ("behind-stranger", 8_903, 18_903, "TLS: no trusted authority has signed its certificate"),
    ("behind-expired", 8_904, 18_904, "TLS: its certificate is not valid at this time"),
];
const RIGHT: u16 = 18_901;
const KNOWN: u16 = 18_905;
/// At the VIP: bytes, HTTP/1.1, HTTP/2, and to the server that asks for a certificate.
const BYTES: u16 = 8_901;
const HTTP: u16 = 8_905;

/// Their services in the policy.
pub fn services() -> String {
    let pool = |port: u16| format!("pool: [{{address: {CLIENT_ADDRESS}, port: {port}}}]");
    let options = "name: b.csp.test, authority: internal";
    let wrong = WRONG.map(|(name, port, server, _)| {
        format!(
            "  - {{name: {name}, vip: {VIP}, port: {port}, {}, servers: {{tls: {{{options}}}}}}}\n",
            pool(server)
        )
    });
    format!(
        "{}  - {{name: behind, vip: {VIP}, port: {BYTES}, {}, servers: {{tls: {{{options}}}}}}}
  - {{name: behind1, {}, servers: {{tls: {{{options}}}, check: {{interval_ms: 500, timeout_ms: 400, http: {{path: /, host: b.csp.test}}}}}}}}
  - {{name: behind2, {}, servers: {{http2: true, tls: {{{options}, min_version: '1.3'}}}}}}
  - {{name: behind-known, {}, servers: {{tls: {{{options}, certificate: proxy.csp.test}}}}}}
  - name: behind-http
    vip: {VIP}
    port: {HTTP}
    http:
      routes:
        - {{name: h2, path: {{prefix: /h2}}, to: [{{service: behind2}}]}}
        - {{name: known, path: {{prefix: /known}}, to: [{{service: behind-known}}]}}
        - {{name: rest, to: [{{service: behind1}}]}}
",
        wrong.concat(),
        pool(RIGHT),
        pool(RIGHT),
        pool(RIGHT),
        pool(KNOWN)
    )
}

fn keys(cluster: &Cluster) -> PathBuf {
    cluster.scratch().join("behind")
}

/// Makes the authorities and certificates, and starts nginx.
pub fn start(cluster: &mut Cluster) {
    let keys = keys(cluster);
    fs::create_dir_all(&keys).unwrap();
    let folder = super::folder(cluster);
    fs::create_dir_all(&folder).unwrap();
    let new = "openssl req -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 2>&1";
    let mut script = format!("set -e; cd {}\n", keys.display());
    for name in ["internal", "stranger"] {
        script +=
            &format!("{new} -x509 -days 30 -subj /CN={name} -keyout {name}.ca.key -out {name}.ca.pem\n");
    }
    // `openssl ca` sets the time of the beginning and of the end.
    script += "printf '[ca]\\ndefault_ca=c\\n[c]\\ndatabase=index\\nrand_serial=yes\\ndefault_md=sha256\\npolicy=p\\ncopy_extensions=copy\\nunique_subject=no\\nnew_certs_dir=.\\n[p]\\ncommonName=supplied\\n' > ca.cnf; : > index\n";
    for (file, name, authority, time) in [
        ("right", "b.csp.test", "internal", "-days 2"),
        ("other-name", "a.csp.test", "internal", "-days 2"),
        ("stranger", "b.csp.test", "stranger", "-days 2"),
        ("expired", "b.csp.test", "internal", "-startdate 20200101000000Z -enddate 20210101000000Z"),
        ("proxy.csp.test", "proxy.csp.test", "internal", "-days 2"),
    ] {
        script += &format!(
            "{new} -subj /CN={file} -addext subjectAltName=DNS:{name} -keyout {file}.key -out {file}.csr
openssl ca -batch -config ca.cnf -notext {time} -cert {authority}.ca.pem -keyfile {authority}.ca.key -in {file}.csr -out {file}.pem 2>&1\n"
        );
    }
    cluster.client.run("sh", &["-c", &script]).unwrap();
    for file in ["internal.ca.pem", "proxy.csp.test.pem", "proxy.csp.test.key"] {
        fs::copy(keys.join(file), folder.join(file)).unwrap();
    }
    let own = folder.join("proxy.csp.test.key");
    fs::set_permissions(own, fs::Permissions::from_mode(0o600)).unwrap();
    let server = |port: u16, file: &str, more: &str| {
        format!(
            "server {{ listen {CLIENT_ADDRESS}:{port} ssl http2; ssl_certificate {file}.pem; ssl_certificate_key {file}.key; {more}
location / {{ add_header X-Protocol $server_protocol; return 200 \"$ssl_server_name $ssl_session_reused $ssl_client_s_dn\\n\"; }} }}\n"
        )
    };
    let known = "ssl_client_certificate internal.ca.pem; ssl_verify_client on;";
    let servers = [
        server(RIGHT, "right", ""),
        server(WRONG[0].2, "other-name", ""),
        server(WRONG[1].2, "stranger", ""),
        server(WRONG[2].2, "expired", ""),
        server(KNOWN, "right", known),
    ];
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = temporary.map(|of| format!("{of}_temp_path {}/{of};\n", keys.display()));
    let conf = format!(
        "daemon off; pid nginx.pid; error_log error.log; events {{}}
http {{ access_log off; ssl_protocols TLSv1.2 TLSv1.3; {}{} }}\n",
        temporary.concat(),
        servers.concat()
    );
    let file = keys.join("nginx.conf");
    fs::write(&file, conf).unwrap();
    let mut nginx = cluster.client.command("nginx");
    nginx.args(["-p", &keys.to_string_lossy(), "-c", &file.to_string_lossy(), "-e", "stderr"]);
    cluster.spawn("nginx-outside", nginx).unwrap();
}

fn get(cluster: &Cluster, port: u16, path: &str) -> anyhow::Result<String> {
    let url = format!("http://{VIP}:{port}{path}");
    cluster.client.run("curl", &["-sSf", "-i", "-m", "10", &url])
}

/// Servers whose certificates are right serve, over each protocol; others get no byte, and the reason shows.
pub fn certificates_of_servers_decide(cluster: &Cluster) {
    for (port, path, expected) in [
        (BYTES, "/", &["b.csp.test ", "HTTP/1.1"][..]),
        (HTTP, "/", &["b.csp.test ", "HTTP/1.1"]),
        (HTTP, "/h2", &["b.csp.test ", "HTTP/2.0"]),
        (HTTP, "/known", &["b.csp.test ", "CN=proxy.csp.test"]),
    ] {
        let told = wait_until("an answer", SERVING_DEADLINE, || get(cluster, port, path).ok())
            .unwrap_or_else(|e| panic!("{e}: {:?}: {}", get(cluster, port, path), cluster.program_logs(9)));
        assert!(expected.iter().all(|text| told.contains(text)), "{port}{path}: {told}");
    }
    let again = get(cluster, BYTES, "/").unwrap();
    assert!(again.contains("b.csp.test r"), "the session is resumed: {again}");
    for (name, port, _, why) in WRONG {
        assert!(get(cluster, port, "/").is_err(), "{name}");
        let services = cluster.cspctl(&["services"]).unwrap();
        assert!(services.contains(why), "{name}: {why}: {services}");
    }
    let sum = |name: &str, label: &str| cluster.metric(Tier::ProxyNode, name, label).unwrap_or(0.0);
    assert!(sum("csp_tls_server_handshakes_total", "") > 0.0);
    assert!(sum("csp_tls_server_resumed_total", "") > 0.0);
    for class in ["name", "untrusted", "expired"] {
        let label = format!("class=\"{class}\"");
        assert!(sum("csp_tls_server_handshakes_failed_total", &label) > 0.0, "{class}");
    }
}
