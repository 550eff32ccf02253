//! The demo's last steps: TLS ends at the proxy, which reads HTTP and leads requests by their path.

use anyhow::{Result, ensure};

use crate::cluster::Cluster;
use crate::configs::{self, VIP};
use crate::demo::step;
use crate::process::wait_until;
use crate::testing::{P256, SERVING_DEADLINE, certificate};

const NAME: &str = "www.csp.test";
const FILE: &str = "16MiB";

fn policy() -> String {
    let front = format!(
        "  - name: front
    vip: {VIP}
    port: 443
    tls: {{certificates: [{NAME}]}}
    http:
      routes:
      - {{name: upload, path: {{prefix: /upload}}, rewrite: {{prefix: /}}, to: [{{service: upload}}]}}
      - {{name: files, to: [{{service: web}}]}}
egress:"
    );
    configs::policy().replace("egress:", &front)
}

/// Runs a shell command on the client's host, in which `$CURL` asks the front.
fn ask(cluster: &Cluster, command: &str) -> Result<String> {
    let ca = cluster.scratch().join(format!("tls/{NAME}.pem"));
    let curl = format!("curl -sSf -m 60 --cacert {} --resolve {NAME}:443:{VIP}", ca.display());
    cluster.client.run("bash", &["-o", "pipefail", "-c", &command.replace("$CURL", &curl)])
}

/// Adds a service with TLS and routes to the demo's policy, and asks it.
///
/// # Errors
/// The first step that failed, with the reason.
pub(crate) fn prove(cluster: &Cluster) -> Result<()> {
    step("a certificate for the proxy, and a policy with TLS and routes", || {
        certificate(&cluster.scratch().join("tls"), NAME, P256, 1)?;
        let file = cluster.scratch().join("front.yaml");
        std::fs::write(&file, policy())?;
        cluster.cspctl(&["policy", "apply", &file.to_string_lossy()])?;
        let small = format!("$CURL -o /dev/null https://{NAME}/1B");
        wait_until("the front answers", SERVING_DEADLINE, || ask(cluster, &small).ok())
    })?;
    let file = cluster.scratch().join("www").join(FILE);
    let sum = ask(cluster, &format!("sha256sum < {}", file.display()))?;
    for version in ["1.1", "2"] {
        step(&format!("GET {FILE} by HTTP/{version} over TLS from nginx: SHA-256 equal"), || {
            let got = ask(cluster, &format!("$CURL --http{version} https://{NAME}/{FILE} | sha256sum"))?;
            ensure!(got == sum, "{got} instead of {sum}");
            Ok(())
        })?;
    }
    step(&format!("PUT {FILE} to /upload: the route leads to the Python application"), || {
        let got = ask(cluster, &format!("$CURL -T {} https://{NAME}/upload", file.display()))?;
        ensure!(sum.starts_with(got.trim()), "{got} instead of {sum}");
        Ok(())
    })
}
