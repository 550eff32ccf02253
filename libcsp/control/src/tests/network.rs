//! A network that fails, between a node and etcd.

use std::sync::Mutex;

use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A network between a node and etcd that can be cut, and led elsewhere.
pub(super) struct Network {
    pub(super) address: SocketAddr,
    /// Where it leads to; `None` while it is cut.
    target: Arc<Mutex<Option<SocketAddr>>>,
    etcd: SocketAddr,
    connections: Arc<Mutex<Vec<tokio::task::AbortHandle>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Network {
    pub(super) async fn to(etcd: SocketAddr) -> Network {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let target = Arc::new(Mutex::new(Some(etcd)));
        let connections: Arc<Mutex<Vec<_>>> = Arc::default();
        let (leads_to, accepted) = (Arc::clone(&target), Arc::clone(&connections));
        let task = tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let Some(etcd) = *leads_to.lock().unwrap() else { continue };
                let relay = tokio::spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(etcd).await {
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                    }
                });
                accepted.lock().unwrap().push(relay.abort_handle());
            }
        });
        Network { address, target, etcd, connections, task }
    }

    pub(super) fn cut(&self) {
        *self.target.lock().unwrap() = None;
        self.connections.lock().unwrap().drain(..).for_each(|relay| relay.abort());
    }

    pub(super) fn mend(&self) {
        self.lead_to(self.etcd);
    }

    pub(super) fn lead_to(&self, etcd: SocketAddr) {
        *self.target.lock().unwrap() = Some(etcd);
    }

    /// The configuration of a node behind it.
    pub(super) fn section(&self) -> EtcdAccess {
        EtcdAccess::bare(format!("http://{}", self.address))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}
