//! `cspctl plugin modules`.

use csp_api::plugins::ModulesView;
use csp_plugins::{Parameter, builtin};
use serde::Serialize;

use super::Context;
use super::error::CliError;
use super::observe::missing;
use super::table::{Cell, Table, bytes};

/// Where management nodes have the supplied modules.
pub(super) const MODULES: &str = "/api/v1/plugin-modules";

/// A module, as `plugin modules` shows it.
#[derive(Serialize)]
struct ModuleRow {
    module: &'static str,
    outputs: u8,
    settings: Vec<SettingRow>,
    operations: Vec<&'static str>,
}

/// A setting of a module; one without default is to be given.
#[derive(Serialize)]
struct SettingRow {
    name: &'static str,
    default: Option<&'static str>,
}

/// All modules.
#[derive(Serialize)]
struct AllModules {
    built_in: Vec<ModuleRow>,
    supplied: ModulesView,
}

fn built_in() -> Vec<ModuleRow> {
    let setting =
        |parameter: &'static Parameter| SettingRow { name: parameter.name, default: parameter.default };
    let row = |module: &'static csp_plugins::Module| ModuleRow {
        module: module.name,
        outputs: module.outputs,
        settings: module.parameters.iter().map(setting).collect(),
        operations: module.operations.iter().map(|operation| operation.name).collect(),
    };
    builtin::MODULES.iter().map(row).collect()
}

pub(super) async fn modules(context: &Context) -> Result<(), CliError> {
    let supplied: ModulesView = context.client.get(MODULES, &[]).await?;
    let all = AllModules { built_in: built_in(), supplied };
    context.show(&all, |AllModules { built_in, supplied }| {
        let mut table = Table::new(&["MODULE", "OUTPUTS", "SETTINGS", "OPERATIONS"]);
        for row in built_in {
            let settings = row.settings.iter().map(|setting| match setting.default {
                None => format!("{}=", setting.name),
                Some(default) => format!("[{}={default}]", setting.name),
            });
            table.row([
                row.module.into(),
                row.outputs.to_string().into(),
                settings.collect::<Vec<_>>().join(" ").into(),
                row.operations.join(" ").into(),
            ]);
        }
        let mut text = table.render(context.paint);
        let mut table = Table::new(&["NODE", "SUPPLIED MODULE", "LENGTH"]);
        for node in &supplied.nodes {
            for module in &node.stored.modules {
                let length = Cell::from(bytes(module.len)).right();
                table.row([node.node.clone().into(), module.module.to_string().into(), length]);
            }
        }
        if supplied.nodes.iter().any(|node| !node.stored.modules.is_empty()) {
            text += &format!("\n{}", table.render(context.paint));
        }
        text + &missing(context, &supplied.unreachable)
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn built_in_modules_are_objects_for_programs() {
        let modules = serde_json::to_value(super::built_in()).unwrap();
        let modules = modules.as_array().unwrap();
        let policer = modules.iter().find(|module| module["module"] == "policer").unwrap();
        let settings = policer["settings"].as_array().unwrap();
        let default =
            |name: &str| settings.iter().find(|setting| setting["name"] == name).unwrap()["default"].clone();
        assert!(default("rate").is_null() && default("burst").is_string(), "{policer}");
        assert_eq!(policer["operations"], serde_json::json!(["read"]));
    }
}
