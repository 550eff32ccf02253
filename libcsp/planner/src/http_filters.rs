//! Filters of HTTP: what the policy says of them, as `csp-filters` has it.

use csp_config::Problems;
use csp_filters::compress::{Coding, CompressSpec};
use csp_filters::{Act, CorsSpec, Filters, Hsts, Key, Limit, POLICY_ENTRIES_MAX, PageSpec};
use csp_filters::{RateSpec, RuleSpec, Spec};
use csp_http::route::RouteSpec;
use csp_policy::{CompressAlgorithm, FilterAct, FilterRule, Http, LimitKey, Policy};

use crate::http::{conditions, path_spec, redirect};

/// Returns the filters of a service, or of a route.
pub fn filters(of: &csp_policy::Filters) -> Spec {
    let page = |page: &csp_policy::ErrorPage| PageSpec {
        statuses: page.statuses.clone(),
        codes: page.codes.clone(),
        body: page.body.as_bytes().into(),
        content_type: page.content_type.clone(),
    };
    Spec {
        rules: of.rules.iter().filter_map(rule).collect(),
        pages: of.error_pages.iter().map(page).collect(),
        cors: of.cors.as_ref().map(cors),
        compress: of.compress.as_ref().map(compress),
        hsts: of.hsts.map(|hsts| Hsts {
            max_age_s: hsts.max_age_s,
            include_subdomains: hsts.include_subdomains,
            preload: hsts.preload,
        }),
    }
}

fn compress(of: &csp_policy::Compress) -> CompressSpec {
    let coding = |algorithm: &CompressAlgorithm| match algorithm {
        CompressAlgorithm::Br => (Coding::Br, of.br_level),
        CompressAlgorithm::Gzip => (Coding::Gzip, of.gzip_level),
    };
    CompressSpec {
        is_on: of.enabled,
        codings: of.algorithms.iter().map(coding).collect(),
        types: of.types.clone(),
        least: of.min_length.into(),
    }
}

fn cors(of: &csp_policy::Cors) -> CorsSpec {
    CorsSpec {
        origins: of.origins.clone(),
        methods: of.methods.clone(),
        headers: of.headers.clone(),
        expose: of.expose.clone(),
        credentials: of.credentials,
        max_age_s: of.max_age_s,
    }
}

/// `None`: a rule that does nothing, which no checked policy has.
fn rule(rule: &FilterRule) -> Option<RuleSpec> {
    let act = match rule.act()? {
        FilterAct::Allow => Act::Allow,
        FilterAct::Deny(deny) => Act::Deny(deny.status),
        FilterAct::Redirect(to) => Act::Redirect(redirect(to)),
        FilterAct::Rate(rate) => {
            let period = rate.period()?;
            let burst = rate.burst.unwrap_or(period.requests);
            let of = RateSpec { requests: period.requests, period_s: period.seconds, burst };
            Act::Rate(Limit { key: key(&rate.key), of, entries: rate.entries as usize })
        }
        FilterAct::Concurrent(bound) => {
            Act::Concurrent(Limit { key: key(&bound.key), of: bound.most, entries: bound.entries as usize })
        }
    };
    let of = RouteSpec {
        priority: 0,
        hosts: rule.hosts.clone(),
        path: path_spec(rule.path.as_ref()),
        methods: rule.methods.clone(),
        headers: conditions(&rule.headers),
        cookies: conditions(&rule.cookies),
        query: conditions(&rule.query),
        sources: rule.sources.clone(),
    };
    Some(RuleSpec { of, act })
}

fn key(key: &LimitKey) -> Key {
    match key {
        LimitKey::Source => Key::Source,
        LimitKey::Host => Key::Host,
        LimitKey::All => Key::All,
        LimitKey::Header(name) => Key::Header(name.clone()),
        LimitKey::Cookie(name) => Key::Cookie(name.clone()),
    }
}

/// Notes what is wrong with the filters of a service.
pub(crate) fn check(http: &Http, at: &str, problems: &mut Problems) {
    let of_routes = http.routes.iter().map(|route| &route.filters).enumerate();
    let of_routes = of_routes.map(|(index, of)| (format!("{at}.routes[{index}].filters"), of));
    let all = std::iter::once(&http.filters).chain(http.routes.iter().map(|route| &route.filters));
    // Before anything is compiled, of which each takes its time.
    if let Err(mistake) = Spec::check_all(all.map(filters).collect::<Vec<_>>().iter()) {
        problems.add(at.to_owned(), mistake.to_string());
        return;
    }
    for (at, of) in std::iter::once((format!("{at}.filters"), &http.filters)).chain(of_routes) {
        if *of == csp_policy::Filters::default() || of.rules.iter().any(|rule| rule.act().is_none()) {
            continue; // what is wrong then was noted: places are those of the policy otherwise
        }
        if let Err(error) = Filters::check(filters(of)) {
            problems.add(format!("{at}.{}", error.part), error.what.to_string());
        }
    }
}

/// Notes whether the tables of all services together are too large.
pub(crate) fn check_policy(policy: &Policy, problems: &mut Problems) {
    let https = policy.services.iter().filter_map(|service| service.http.as_ref());
    let all = https.flat_map(|http| {
        std::iter::once(&http.filters).chain(http.routes.iter().map(|route| &route.filters))
    });
    let entries: usize = all.map(|of| filters(of).sizes().1).sum();
    if entries > POLICY_ENTRIES_MAX {
        let message = format!(
            "tables of {entries} entries in all filters of the policy; allowed are {POLICY_ENTRIES_MAX}"
        );
        problems.add("services".to_owned(), message);
    }
}

#[cfg(test)]
mod tests {
    use crate::checked;

    const POLICY: &str = "\
apiVersion: csp/v1
services:
- name: web
  vip: 10.76.0.100
  port: 80
  http:
    filters:
      rules:
      - {path: {regex: '.*[.]php'}, deny: {status: 404}}
      - {rate: {key: {header: x-key}, per_second: 10}}
      - {redirect: {scheme: https, status: 301}}
    routes:
    - name: all
      to: [{service: api}]
      filters:
        cors: {origins: ['https://app.example'], headers: [x-a]}
        error_pages: [{codes: [no-server], body: '{}', content_type: application/json}]
- {name: api, pool: [{node: an-1, port: 8080}]}
";

    #[test]
    fn what_filters_say_is_read() {
        checked(POLICY, "p").unwrap();
        for (from, to, message) in [
            ("'.*[.]php'", "'.*[.php'", "9:9: services[0].http.filters.rules[0]: the expression"),
            ("status: 404", "status: 204", "filters.rules[0]: 204 denies nothing; allowed are 400 to 599"),
            ("x-key", "'x key'", "filters.rules[1]: \"x key\" is no name of a field"),
            ("per_second: 10", "per_hour: 1, burst: 100", "a burst that lasts longer than a day"),
            ("status: 301", "status: 300", "filters.rules[2]: 300 is no redirect"),
            ("'https://app.example'", "app.example", "routes[0].filters.cors: \"app.example\" is no origin"),
            ("headers: [x-a]", "headers: ['x a']", "filters.cors: \"x a\" is no name of a field"),
            ("['https://app.example']", "['*'], credentials: true", "credentials with the origin *"),
            ("codes: [no-server], ", "", "error_pages[0]: a page names statuses or codes"),
            ("application/json", "json", "error_pages[0]: \"json\" is no content type"),
        ] {
            assert!(POLICY.contains(from), "{from}");
            let error = checked(&POLICY.replacen(from, to, 1), "p").unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
