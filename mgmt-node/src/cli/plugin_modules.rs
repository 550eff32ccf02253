//! `cspctl plugin modules`.

use csp_plugins::{Parameter, builtin};
use serde::Serialize;

use super::Context;
use super::error::CliError;
use super::table::Table;

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

pub(super) fn modules(context: &Context) -> Result<(), CliError> {
    let setting =
        |parameter: &'static Parameter| SettingRow { name: parameter.name, default: parameter.default };
    let row = |module: &'static csp_plugins::Module| ModuleRow {
        module: module.name,
        outputs: module.outputs,
        settings: module.parameters.iter().map(setting).collect(),
        operations: module.operations.iter().map(|operation| operation.name).collect(),
    };
    let rows: Vec<ModuleRow> = builtin::MODULES.iter().map(row).collect();
    context.show(&rows, |rows| {
        let mut table = Table::new(&["MODULE", "OUTPUTS", "SETTINGS", "OPERATIONS"]);
        for row in rows {
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
        table.render(context.paint)
    })
}
