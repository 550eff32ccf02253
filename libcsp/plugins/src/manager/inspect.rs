//! What the manager knows of its instances.

use csp_classify::multifield::InstanceId;

use super::{Manager, ManagerError};
use crate::command::Port;
use crate::settings::{Settings, Value};

impl Manager {
    /// Returns the name of an instance.
    pub fn name_of(&self, id: InstanceId) -> Option<&str> {
        Some(self.instances.get(id.0 as usize)?.as_ref()?.name.as_str())
    }

    /// Returns the module and the settings of an instance.
    pub fn settings_of(&self, name: &str) -> Result<(&'static str, &Settings), ManagerError> {
        let declared = self.declared(self.instance(name)?);
        Ok((declared.module, &declared.settings))
    }

    /// Returns the connections: instance, output, instance.
    pub fn connected(&self) -> Vec<(String, u8, String)> {
        let name = |id: InstanceId| self.declared(id).name.clone();
        self.connections.iter().map(|(port, to)| (name(port.instance), port.output, name(*to))).collect()
    }

    pub(crate) fn is_connected(&self, from: &str, output: usize, to: &str) -> bool {
        let (Ok(from), Ok(to), Ok(output)) = (self.instance(from), self.instance(to), u8::try_from(output))
        else {
            return false;
        };
        self.connections.get(&Port { instance: from, output }) == Some(&to)
    }

    /// Returns the instances that an instance's settings name.
    pub(crate) fn named_by(&self, name: &str) -> Vec<&str> {
        let Ok(id) = self.instance(name) else { return Vec::new() };
        let named = self.declared(id).settings.iter().filter_map(|(_, value)| match value {
            Value::Instance(id) => self.name_of(*id),
            _ => None,
        });
        named.collect()
    }

    /// Returns whether the instance is as it is described.
    pub(crate) fn is_same(
        &self,
        name: &str,
        module: &str,
        environment: &str,
        settings: &[(&str, &str)],
    ) -> bool {
        self.parsed_as(name, module, environment, settings)
            .is_some_and(|(id, settings)| self.declared(id).settings == settings)
    }

    /// Returns whether the instance is of this module and names no instance, before and after.
    pub(crate) fn is_free_standing(
        &self,
        name: &str,
        module: &str,
        environment: &str,
        settings: &[(&str, &str)],
    ) -> bool {
        self.parsed_as(name, module, environment, settings).is_some_and(|(id, settings)| {
            let before = self.declared(id).settings.iter();
            !before.chain(settings.iter()).any(|(_, value)| matches!(value, Value::Instance(_)))
        })
    }

    fn parsed_as(
        &self,
        name: &str,
        module: &str,
        environment: &str,
        settings: &[(&str, &str)],
    ) -> Option<(InstanceId, Settings)> {
        let id = self.instance(name).ok()?;
        let declared = self.declared(id);
        let here = self.environment(environment).ok()? == declared.environment && declared.module == module;
        let module = self.module(module).ok().filter(|_| here)?;
        Some((id, self.parse_settings(module, settings).ok()?))
    }
}
