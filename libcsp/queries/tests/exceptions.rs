//! What stands behind `*`: columns that are left out are not published.

mod common;

use common::plan;
use csp_queries::Expr;

/// The names of a query's columns.
fn names(select: &str) -> Vec<String> {
    let sql = format!("SELECT {select} FROM flights AS f");
    let plan = plan(&sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    plan.outputs.iter().map(|output| output.name.clone()).collect()
}

#[test]
fn columns_behind_except_are_left_out() {
    let all = names("*");
    let without = |left_out: &[&str]| -> Vec<String> {
        all.iter().filter(|name| !left_out.contains(&name.as_str())).cloned().collect()
    };
    for select in [
        "* EXCEPT (delay)",
        "* EXCLUDE (delay)",
        "* EXCLUDE delay",
        "f.* EXCEPT (delay)",
        "* EXCEPT (f.delay)",
        "* except (\"delay\")",
    ] {
        assert_eq!(names(select), without(&["delay"]), "{select}");
    }
    assert_eq!(
        names("* EXCEPT (delay, price, passengers, remark)"),
        without(&["delay", "price", "passengers", "remark"])
    );
    let everything = all.join(", ");
    let error = plan(&format!("SELECT * EXCEPT ({everything}) FROM flights"))
        .expect_err("nothing is left")
        .to_string();
    assert_eq!(error, "line 1, column 8: a SELECT list without columns is not supported");
}

#[test]
fn columns_of_both_channels_are_left_out_or_of_one() {
    let names = |select: &str| {
        let sql =
            format!("SELECT {select} FROM flights f JOIN weather w ON f.origin = w.origin WITHIN 1 HOUR");
        plan(&sql).map(|plan| plan.outputs.iter().filter(|output| output.name == "origin").count())
    };
    names("*").expect_err("two columns of one name");
    assert_eq!(names("* EXCEPT (w.origin)"), Ok(1));
    assert_eq!(names("* EXCEPT (origin)"), Ok(0));
    assert_eq!(names("f.*, w.* EXCEPT (origin)"), Ok(1));
}

#[test]
fn columns_are_replaced_and_renamed() {
    let plan =
        plan("SELECT * EXCEPT (remark) REPLACE (delay * 0 AS delay) RENAME (origin AS start) FROM flights")
            .expect("valid");
    let output = |name: &str| plan.outputs.iter().find(|output| output.name == name);
    assert!(output("remark").is_none() && output("origin").is_none());
    assert!(matches!(output("delay").map(|output| &output.expr), Some(Expr::Arithmetic(..))));
    assert!(output("start").is_some_and(|output| output.like.is_some()));
    assert_eq!(names("* RENAME origin AS start")[0], "start");
    common::plan("SELECT * REPLACE (1 AS nothing) FROM flights").expect_err("no such column");
}
