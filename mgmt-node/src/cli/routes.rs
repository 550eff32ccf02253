//! `cspctl routes` and `cspctl routes test`: what the proxies do with requests of HTTP, by a policy.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use clap::{Args, Subcommand};
use csp_planner::http::trial::{self, NoRoute, Outcome, Trial};
use csp_policy::{Condition, Http, PathMatch, Policy, Rewrite, Route, RouteAction, Service};
use reqwest::Url;
use serde::Serialize;

use super::args::{Command, Output};
use super::error::CliError;
use super::observe::address;
use super::paint::{Colour, Paint};
use super::queries::PolicyChoice;
use super::table::{Cell, Table};
use super::{Context, edit, queries, show_as};

/// Arguments of `cspctl routes`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RoutesArgs {
    /// What to do; without it routes are listed
    #[command(subcommand)]
    pub command: Option<RoutesCommand>,
    /// Only routes of this service
    pub service: Option<String>,
    /// Which policy
    #[command(flatten)]
    pub policy: PolicyChoice,
}

/// `cspctl routes ...`
#[derive(Debug, Subcommand)]
pub enum RoutesCommand {
    /// Say which route a request would fall under, and where it would go; no request is made
    ///
    /// The services are those with `http` at the URL's port, with TLS if it is https. Rules of filters are
    /// not tried. Exit code 1 when the request falls under no route, or the proxies would refuse it.
    #[command(after_help = "Examples:\n  cspctl routes test https://www.example.com/api/users\n  \
                            cspctl routes test http://www.example.com/ --method POST --header 'Cookie: beta=yes'\n  \
                            cspctl routes test https://www.example.com/admin --from 10.1.2.3 --policy new.yaml\n  \
                            cspctl routes test https://www.example.com/ -o json | jq -r '.[].route'")]
    Test(TestArgs),
}

/// Arguments of `cspctl routes test`.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// The URL that a client asks for, http or https
    pub url: Url,
    /// The method
    #[arg(long, short = 'X', default_value = "GET", value_name = "METHOD")]
    pub method: String,
    /// A further field; as often as needed
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = field)]
    pub header: Vec<(String, String)>,
    /// The client's address
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), value_name = "ADDRESS")]
    pub from: IpAddr,
    /// Only this service
    #[arg(long, short, value_name = "NAME")]
    pub service: Option<String>,
    /// Which policy
    #[command(flatten)]
    pub policy: PolicyChoice,
}

fn field(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("a field is NAME: VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// A route, in words.
#[derive(Debug, Serialize)]
struct RouteRow {
    service: String,
    route: String,
    priority: i32,
    hosts: Vec<String>,
    path: String,
    /// What else a request has to have.
    conditions: Vec<String>,
    /// What becomes of it.
    does: String,
}

/// What becomes of a request at a service.
#[derive(Debug, Serialize)]
struct Tested {
    service: String,
    /// Where clients connect.
    address: String,
    /// The route; absent: none, and `refused` says why.
    route: Option<String>,
    does: String,
    /// The path that servers get.
    path: Option<String>,
    /// Where a redirect leads.
    location: Option<String>,
    refused: Option<String>,
}

impl RoutesArgs {
    fn choice(&self) -> &PolicyChoice {
        match &self.command {
            Some(RoutesCommand::Test(args)) => &args.policy,
            None => &self.policy,
        }
    }
}

/// Runs the command if it needs no server.
pub(super) fn offline(command: &Command, output: Output, paint: Paint) -> Option<Result<(), CliError>> {
    let Command::Routes(args) = command else { return None };
    let file = args.choice().policy.as_deref()?;
    Some(queries::read(file).and_then(|policy| run(args, &policy, output, paint)))
}

/// Runs the command on the active policy.
pub(super) async fn online(context: &Context, args: &RoutesArgs) -> Result<(), CliError> {
    let (_, policy) = edit::active(context).await?;
    run(args, &policy, context.output, context.paint)
}

fn run(args: &RoutesArgs, policy: &Policy, output: Output, paint: Paint) -> Result<(), CliError> {
    match &args.command {
        None => {
            let services = services(policy, args.service.as_deref())?;
            let rows: Vec<RouteRow> =
                services.iter().flat_map(|(service, http)| rows(service, http)).collect();
            show_as(output, &rows, |rows| table(rows, paint))
        }
        Some(RoutesCommand::Test(args)) => {
            let tested = test(args, policy)?;
            show_as(output, &tested, |tested| words(tested, paint))?;
            match tested.iter().all(|one| one.route.is_some()) {
                true => Ok(()),
                false => Err(CliError::Found(1)),
            }
        }
    }
}

/// Returns the services with `http`, or the one of this name.
fn services<'p>(policy: &'p Policy, name: Option<&str>) -> Result<Vec<(&'p Service, &'p Http)>, CliError> {
    let all = || policy.http_services();
    let found: Vec<_> = all().filter(|(service, _)| name.is_none_or(|name| service.name == name)).collect();
    match name.filter(|_| found.is_empty()) {
        Some(name) => Err(queries::missing("service with http", name, all().map(|(s, _)| s.name.as_str()))),
        None => Ok(found),
    }
}

fn rows<'p>(service: &'p Service, http: &'p Http) -> impl Iterator<Item = RouteRow> + use<'p> {
    http.routes.iter().map(|route| RouteRow {
        service: service.name.clone(),
        route: route.name.clone(),
        priority: route.priority,
        hosts: route.hosts.clone(),
        path: match &route.path {
            None => String::new(),
            Some(PathMatch::Exact(path)) => format!("= {path}"),
            Some(PathMatch::Prefix(path)) => path.clone(),
            Some(PathMatch::Regex(expression)) => format!("~ {expression}"),
        },
        conditions: conditions(route),
        does: does(route),
    })
}

/// What a request has to have beside host and path.
fn conditions(route: &Route) -> Vec<String> {
    let mut words = Vec::new();
    if !route.methods.is_empty() {
        words.push(route.methods.join("|"));
    }
    let named = [("header", &route.headers), ("cookie", &route.cookies), ("query", &route.query)];
    for (kind, conditions) in named {
        words.extend(conditions.iter().map(|condition| format!("{kind} {}", condition_words(condition))));
    }
    if !route.sources.is_empty() {
        let sources: Vec<String> = route.sources.iter().map(ToString::to_string).collect();
        words.push(format!("from {}", sources.join("|")));
    }
    words
}

fn condition_words(condition: &Condition) -> String {
    let Condition { name, exact, prefix, regex, absent } = condition;
    match (exact, prefix, regex) {
        (Some(text), ..) => format!("{name}={text}"),
        (_, Some(text), _) => format!("{name}={text}…"),
        (.., Some(text)) => format!("{name}~{text}"),
        _ if *absent => format!("no {name}"),
        _ => name.clone(),
    }
}

/// What a route does, in words.
fn does(route: &Route) -> String {
    let cached = if route.cache.is_some() { ", cached" } else { "" };
    let rules = match route.filters.rules.len() {
        0 => String::new(),
        1 => ", 1 rule".to_owned(),
        count => format!(", {count} rules"),
    };
    format!("{}{cached}{rules}", acts(route))
}

fn acts(route: &Route) -> String {
    match route.action() {
        Some(RouteAction::Forward([one])) => format!("to {}", one.service),
        Some(RouteAction::Forward(targets)) => {
            let share = |target: &csp_policy::RouteTarget| format!("{} ({})", target.service, target.weight);
            format!("to {}", targets.iter().map(share).collect::<Vec<_>>().join(", "))
        }
        Some(RouteAction::Redirect(to)) => {
            let path = match &to.path {
                Some(Rewrite::Path(path) | Rewrite::Prefix(path)) => path.as_str(),
                None => "",
            };
            let scheme = to.scheme.as_ref().map(|scheme| format!("{scheme}://")).unwrap_or_default();
            let host = to.host.as_deref().unwrap_or_default();
            format!("redirect {} {scheme}{host}{path}", to.status).trim_end().to_owned()
        }
        Some(RouteAction::Respond(respond)) => format!("answer {}", respond.status),
        None => String::new(),
    }
}

fn table(rows: &[RouteRow], paint: Paint) -> String {
    if rows.is_empty() {
        return "No routes: the policy has no service with http.\n".to_owned();
    }
    let mut table = Table::new(&["SERVICE", "ROUTE", "HOSTS", "PATH", "CONDITIONS", "DOES"]);
    for row in rows {
        table.row([
            row.service.clone().into(),
            row.route.clone().into(),
            if row.hosts.is_empty() { "any".into() } else { row.hosts.join(" ").into() },
            if row.path.is_empty() { "any".into() } else { row.path.clone().into() },
            row.conditions.join(", ").into(),
            row.does.clone().into(),
        ]);
    }
    let mut text = table.render(paint);
    if rows.iter().any(|row| row.priority != 0) {
        text += "Some routes have a priority, which counts first.\n";
    }
    text + "Of several that match a request the most specific one counts: `cspctl routes test URL`.\n"
}

fn test(args: &TestArgs, policy: &Policy) -> Result<Vec<Tested>, CliError> {
    let is_tls = match args.url.scheme() {
        "https" => true,
        "http" => false,
        other => return Err(CliError::Usage(format!("{other}: allowed are http and https"))),
    };
    let port = args.url.port_or_known_default().unwrap_or(80);
    let mut found = services(policy, args.service.as_deref())?;
    if args.service.is_none() {
        found.retain(|(service, _)| service.port == port && service.tls.is_some() == is_tls);
    }
    if found.is_empty() {
        let with = if is_tls { "with tls" } else { "without tls" };
        return Err(CliError::Failed(format!(
            "no service with http has port {port} {with}; `cspctl routes` lists them, --service names one"
        )));
    }
    let mut target = args.url.path().to_owned();
    if let Some(query) = args.url.query() {
        let _ = write!(target, "?{query}"); // a string takes it
    }
    let host = args.url.host_str().unwrap_or_default();
    let host = match args.url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    };
    let trial = Trial {
        method: &args.method,
        host: &host,
        target: &target,
        headers: &args.header,
        source: args.from,
        is_tls,
    };
    Ok(found.into_iter().map(|(service, http)| tested(service, http, &trial)).collect())
}

fn tested(service: &Service, http: &Http, trial: &Trial<'_>) -> Tested {
    let at = address(&service.vip.to_string(), service.port);
    let tested = Tested {
        service: service.name.clone(),
        address: at,
        route: None,
        does: String::new(),
        path: None,
        location: None,
        refused: None,
    };
    let found = trial::find(http, trial).and_then(|outcome| {
        let route = http.routes.get(outcome.route).ok_or(NoRoute::None)?;
        Ok((route, outcome))
    });
    match found {
        Ok((route, Outcome { path, location, .. })) => {
            Tested { route: Some(route.name.clone()), does: does(route), path, location, ..tested }
        }
        Err(why) => Tested { refused: Some(why.to_string()), ..tested },
    }
}

fn words(tested: &[Tested], paint: Paint) -> String {
    let mut table = Table::new(&["SERVICE", "ADDRESS", "ROUTE", "DOES", "PATH OR LOCATION"]);
    for one in tested {
        let (route, does) = match (&one.route, &one.refused) {
            (Some(route), _) => (Cell::from(route.clone()).coloured(Colour::Green), one.does.clone()),
            (None, refused) => {
                (Cell::from("none").coloured(Colour::Red), refused.clone().unwrap_or_default())
            }
        };
        table.row([
            one.service.clone().into(),
            one.address.clone().into(),
            route,
            does.into(),
            one.path.clone().or(one.location.clone()).unwrap_or_default().into(),
        ]);
    }
    table.render(paint)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "\
apiVersion: csp/v1
services:
- name: www
  vip: 10.76.0.100
  port: 80
  http:
    routes:
    - {name: api, hosts: [a.example], path: {prefix: /api}, methods: [GET, POST], to: [{service: one, weight: 9}, {service: two}]}
    - {name: kept, path: {prefix: /kept}, to: [{service: one}], cache: {}, filters: {rules: [{sources: [10.9.0.0/16], deny: {}}]}}
    - {name: old, path: {exact: /old}, redirect: {status: 301, scheme: https}}
    - {name: beta, cookies: [{name: beta, exact: 'yes'}], sources: [10.0.0.0/8], respond: {status: 200}}
- {name: one, pool: [{node: an-1, port: 8080}]}
- {name: two, pool: [{node: an-1, port: 8081}]}
";

    fn policy() -> Policy {
        Policy::parse_yaml(POLICY, "p").unwrap()
    }

    fn args(url: &str) -> TestArgs {
        TestArgs {
            url: url.parse().unwrap(),
            method: "GET".into(),
            header: vec![("cookie".into(), "beta=yes".into())],
            from: "192.0.2.1".parse().unwrap(),
            service: None,
            policy: PolicyChoice { policy: None },
        }
    }

    #[test]
    fn routes_are_listed_in_words() {
        let policy = policy();
        let rows: Vec<RouteRow> =
            services(&policy, None).unwrap().iter().flat_map(|(service, http)| rows(service, http)).collect();
        let text = table(&rows, Paint::off());
        for words in [
            "to one, cached, 1 rule",
            "GET|POST",
            "to one (9), two (1)",
            "= /old",
            "redirect 301 https://",
            "cookie beta=yes, from 10.0.0.0/8",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(services(&policy, Some("wwv")).unwrap_err().to_string().contains("the nearest is \"www\""));
    }

    #[test]
    fn a_request_is_tried() {
        let policy = policy();
        let one = |args: &TestArgs| test(args, &policy).unwrap().remove(0);
        let found = one(&args("http://a.example/api/x?y"));
        assert_eq!((found.route.as_deref(), found.path.as_deref()), (Some("api"), Some("/api/x")));
        let found = one(&args("http://a.example/old"));
        assert_eq!(found.location.as_deref(), Some("https://a.example/old"));
        assert!(one(&args("http://b.example/")).refused.unwrap().contains("no-route"));
        let inside = TestArgs { from: "10.1.2.3".parse().unwrap(), ..args("http://b.example/") };
        assert_eq!(one(&inside).route.as_deref(), Some("beta"));
        assert!(
            test(&args("https://a.example/"), &policy).unwrap_err().to_string().contains("port 443 with tls")
        );
    }
}
