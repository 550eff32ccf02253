//! Queries about the manager's instances.

use std::collections::BTreeSet;

use csp_classify::multifield::InstanceId;

use super::{Manager, ManagerError};
use crate::command::{Environment, EnvironmentId, Level, Port};
use crate::plugin::{Plugin, PluginError};
use crate::settings::{Settings, Value};
use crate::supplied;

impl Manager {
    /// Returns some of the rules, connections and settings that refer to an instance.
    pub(super) fn users_of(&self, id: InstanceId) -> Vec<String> {
        let rules = self.declared(id).rules.iter().map(|rule| format!("rule {rule}"));
        let connections = self.connections.iter().filter(|(_, to)| **to == id);
        let connections = connections
            .map(|(port, _)| format!("output {} of {}", port.output, self.declared(port.instance).name));
        let others =
            self.instances.iter().flatten().filter(|declared| declared.name != self.declared(id).name);
        let settings = others
            .filter(|declared| declared.settings.iter().any(|(_, value)| *value == Value::Instance(id)));
        let settings = settings.map(|declared| format!("a setting of {}", declared.name));
        rules.chain(connections).chain(settings).take(4).collect()
    }

    /// Creates an instance for one worker.
    pub(super) fn make(
        &self,
        name: &str,
        module: &str,
        settings: &Settings,
    ) -> Result<Box<dyn Plugin>, PluginError> {
        match &self.supply {
            Some(supply) if supplied::is_supplied(module) => supply.make(name, module, settings),
            _ => (self.module(module).map_err(|error| PluginError::Supplied(error.to_string()))?.make)(
                settings,
                self.config.hash_key,
            ),
        }
    }

    /// Returns the environments, by number.
    pub fn environments(&self) -> &[Environment] {
        &self.environments
    }

    /// Returns the number, name, module and environment of each instance.
    pub fn instances(&self) -> impl Iterator<Item = (InstanceId, &str, &str, &str)> {
        self.instances.iter().enumerate().filter_map(|(at, declared)| {
            let declared = declared.as_ref()?;
            let environment = &self.environments[usize::from(declared.environment.0)].name;
            Some((InstanceId(at as u32), declared.name.as_str(), &*declared.module, environment.as_str()))
        })
    }

    /// Returns the name of an instance.
    pub fn name_of(&self, id: InstanceId) -> Option<&str> {
        Some(self.instances.get(id.0 as usize)?.as_ref()?.name.as_str())
    }

    /// Returns the module and the settings of an instance.
    pub fn settings_of(&self, name: &str) -> Result<(&str, &Settings), ManagerError> {
        let declared = self.declared(self.instance(name)?);
        Ok((&*declared.module, &declared.settings))
    }

    /// Returns the connections as source instance, output and target instance.
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

    /// Checks that the instances which an instance's settings name run on the same host.
    pub(crate) fn check_near(
        &self,
        name: &str,
        environment: EnvironmentId,
        settings: &Settings,
    ) -> Result<(), ManagerError> {
        let level_of = |at: EnvironmentId| self.environments.get(usize::from(at.0)).map(|found| found.level);
        for (_, value) in settings.iter() {
            let Value::Instance(other) = value else { continue };
            let there = self.declared(*other).environment;
            let remote = [environment, there].iter().any(|at| level_of(*at) == Some(Level::Host));
            if remote && environment != there {
                let (name, other) = (name.into(), self.declared(*other).name.clone());
                return Err(ManagerError::OtherEnvironment { name, other });
            }
        }
        Ok(())
    }

    /// Provides an environment of level 3 for each of these hosts. An environment without instances, whose
    /// host is no longer listed, is reused.
    pub(crate) fn set_hosts(&mut self, hosts: &BTreeSet<&str>) -> Result<(), ManagerError> {
        for name in hosts {
            if self.environments.iter().any(|known| known.name == *name) {
                continue;
            }
            let unused = self.environments.iter().enumerate().position(|(at, known)| {
                let used = |declared: &super::Declared| usize::from(declared.environment.0) == at;
                known.level == Level::Host
                    && !hosts.contains(known.name.as_str())
                    && !self.instances.iter().flatten().any(used)
            });
            match unused {
                Some(at) => self.environments[at].name = (*name).to_owned(),
                None => drop(self.add_environment(name, Level::Host)?),
            }
        }
        Ok(())
    }

    /// Returns whether the instance is as described.
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

    /// Returns whether the instance belongs to this module, and whether its former and its new settings name
    /// only instances that are kept.
    pub(crate) fn can_be_configured(
        &self,
        name: &str,
        module: &str,
        environment: &str,
        settings: &[(&str, &str)],
        same: &BTreeSet<&str>,
    ) -> bool {
        self.parsed_as(name, module, environment, settings).is_some_and(|(id, settings)| {
            let mut all = self.declared(id).settings.iter().chain(settings.iter());
            all.all(|(_, value)| match value {
                Value::Instance(named) => self.name_of(*named).is_some_and(|name| same.contains(name)),
                _ => true,
            })
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
        let here = self.environment(environment).ok()? == declared.environment && &*declared.module == module;
        let module = self.module(module).ok().filter(|_| here)?;
        Some((id, self.parse_settings(module, settings).ok()?))
    }
}
