//! Pass-through by the server's name, as workers need it.

use std::sync::Arc;

use csp_policy::SniRoute;

use crate::core::ServerNames;

/// Returns the services by name; `None` if a service names none.
pub(super) fn names(routes: &[SniRoute]) -> Option<Arc<ServerNames<Box<str>>>> {
    let mut all = ServerNames::default();
    for route in routes {
        route.names.iter().for_each(|name| all.insert(name, route.service.as_str().into()));
    }
    (!routes.is_empty()).then(|| Arc::new(all))
}
