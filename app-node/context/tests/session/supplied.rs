//! Stages with supplied handlers: their modules are asked for, and checked; messages wait meanwhile.

use csp_context::builder::HandlerBuilder;
use csp_context::request::{BuildRequest, BuildResult};
use csp_sandbox::{Limits as SandboxLimits, Sha256};
use csp_types::options::{OnStop, Standing};
use csp_wire::context::{Hash, PART_LEN_MAX, Report};

use super::*;

/// Emits messages whose format it finds a field `n` in; the others it gives up. With parameters that begin
/// with `x` it never ends.
const MODULE: &str = r#"(module
    (import "csp" "emit_same" (func $emit (param i32) (result i32)))
    (import "csp" "locate" (func $locate (param i32 i32 i32 i32) (result i32)))
    (import "csp" "parameters" (func $parameters (param i32 i32 i32) (result i32)))
    (memory (export "memory") 1 1)
    (data (i32.const 0) "n")
    (func (export "csp_abi") (result i32) i32.const 1)
    (func (export "configure") (param i32) (result i32)
        (drop (call $parameters (i32.const 0) (i32.const 1) (i32.const 64))) (i32.const 0))
    (func (export "on_message") (param $format i32) (param i32 i32) (result i32)
        (if (i32.eq (i32.load8_u (i32.const 64)) (i32.const 120)) (then (loop $on (br $on))))
        (if (i32.lt_s (call $locate (local.get $format) (i32.const 0) (i32.const 1) (i32.const 8)) (i32.const 0))
            (then (return (i32.const 2))))
        (call $emit (i32.const 0))))"#;

const SCHEMA: &str = r#"<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="p" id="7" version="0">
  <types><composite name="messageHeader">
    <type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/>
    <type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/>
  </composite></types>
  <sbe:message name="A" id="1"><field name="n" id="1" type="uint32"/></sbe:message>
</sbe:messageSchema>"#;

fn module() -> (Hash, Vec<u8>) {
    let bytes = wat::parse_str(MODULE).unwrap();
    (Sha256::of(&bytes).0, bytes)
}

/// Formats in which format 3, that of all calls here, is `A`.
fn formats() -> (Hash, Vec<u8>) {
    let bytes = csp_sandbox::encode_formats([(csp_handlers::FormatId(3), "A", SCHEMA)].into_iter());
    (Sha256::of(&bytes).0, bytes)
}

fn supplied(place: Place, parameters: &str, module: &Hash, formats: Option<&Hash>) -> Vec<u8> {
    let supply = Supply { module: Some(module), formats, on_stop: OnStop::Pass };
    emit(Record::Stage { place, room: 1 << 20, handler: "mine", parameters, supply })
}

fn parts(object: &Hash, bytes: &[u8]) -> Vec<Vec<u8>> {
    let total = bytes.len() as u32;
    let part = |(at, bytes): (usize, &[u8])| {
        let mut record = vec![0; 100 + bytes.len()];
        let offset = (at * 100) as u32;
        let len = Record::Part { object, total, offset, bytes }.emit_head(None, &mut record).unwrap();
        record.truncate(len);
        record
    };
    bytes.chunks(100).enumerate().map(part).collect()
}

/// Runs requests as the program's thread does, until nothing is left. Returns what the session answers.
fn work(session: &mut Session, builder: &mut HandlerBuilder) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let requests = session.take_requests();
        if requests.is_empty() {
            return out;
        }
        for request in requests {
            let made = builder.make(&request);
            session.built(NOW, (request.place, request.serial), made, &mut out);
        }
    }
}

fn wants(mut bytes: &[u8]) -> Vec<Hash> {
    let mut all = Vec::new();
    while let Some((record, len)) = Record::parse(bytes).unwrap() {
        let Record::Want { object, .. } = record else { panic!("{record:?}") };
        all.push(*object);
        bytes = &bytes[len..];
    }
    all
}

fn receive(session: &mut Session, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    session.receive(NOW, bytes, &mut out).unwrap();
    out
}

#[test]
fn a_module_and_its_formats_are_asked_for_once_and_messages_wait() {
    let (mut s, mut builder) = (session(Limits::default()), HandlerBuilder::new(SandboxLimits::default()));
    let ((module, code), (formats, texts)) = (module(), formats());
    let begin = [hello(), supplied(A, "", &module, Some(&formats)), supplied(B, "", &module, None)].concat();
    assert_eq!(names(&receive(&mut s, &begin)), [("hello", 0)]);
    assert_eq!(wants(&work(&mut s, &mut builder)), [module, formats], "two stages, one module");
    let calls = [call(A, 1, &[b"x"]), call(B, 2, &[b"y"]), call(A, 3, &[b"z"])].concat();
    assert_eq!(names(&receive(&mut s, &calls)), []);
    assert_eq!(s.waiting(), 3);
    for part in parts(&module, &code) {
        receive(&mut s, &part);
    }
    // The stage without formats runs, and finds no field.
    assert_eq!(names(&work(&mut s, &mut builder)), [("fault", 3)]);
    for part in parts(&formats, &texts) {
        receive(&mut s, &part);
    }
    let both = [("same", 0), ("done", 0), ("same", 0), ("done", 0)];
    assert_eq!(names(&work(&mut s, &mut builder)), both);
    // A program that has them asks for nothing.
    let mut again = session(Limits::default());
    receive(&mut again, &[hello(), supplied(A, "", &module, Some(&formats)), call(A, 1, &[b"x"])].concat());
    assert_eq!(names(&work(&mut again, &mut builder)), [("same", 0), ("done", 0)]);
}

#[test]
fn a_module_that_never_ends_is_stopped_reported_and_passed_by() {
    let (mut s, mut builder) = (session(Limits::default()), HandlerBuilder::new(SandboxLimits::default()));
    let (module, code) = module();
    receive(&mut s, &[hello(), supplied(A, "x", &module, None), call(A, 1, &[b"x"])].concat());
    assert_eq!(wants(&work(&mut s, &mut builder)), [module]);
    parts(&module, &code).iter().for_each(|part| _ = receive(&mut s, part));
    let out = work(&mut s, &mut builder);
    let (done, len) = Record::parse(&out).unwrap().unwrap();
    assert_eq!(done, Record::Done { place: A, fault: true, ended: false });
    let Some((Record::Report { place: A, standing, numbers, why: "" }, _)) =
        Record::parse(&out[len..]).unwrap()
    else {
        panic!("no report");
    };
    assert_eq!((standing, Report::read(standing, numbers).stops[0]), (Standing::PassedBy, 1), "fuel");
    assert_eq!(names(&receive(&mut s, &call(A, 2, &[b"y"]))), [("same", 0), ("done", 0)]);
}

#[test]
fn what_is_no_module_is_refused_with_why_and_holds_up_only_itself() {
    let (mut s, mut builder) = (session(Limits::default()), HandlerBuilder::new(SandboxLimits::default()));
    let code = b"\0asm no module";
    let module = Sha256::of(code).0;
    let begin = [hello(), supplied(A, "", &module, None), stage(B, 1 << 20, "forward", "")].concat();
    receive(&mut s, &begin);
    work(&mut s, &mut builder);
    parts(&module, code).iter().for_each(|part| _ = receive(&mut s, part));
    let out = work(&mut s, &mut builder);
    let Some((Record::Report { standing: Standing::Refused, why, .. }, _)) = Record::parse(&out).unwrap()
    else {
        panic!("no report");
    };
    assert!(why.starts_with("the module is not valid"), "{why}");
    let calls = [call(A, 1, &[b"x"]), call(B, 1, &[b"x"])].concat();
    assert_eq!(names(&receive(&mut s, &calls)), [("same", 3), ("done", 3)]);
    // One that a stage which is gone has ordered is dropped.
    receive(
        &mut s,
        &[
            supplied(Place { stage: 5, ..A }, "", &module, None),
            emit(Record::Gone { place: Place { stage: 5, ..A } }),
        ]
        .concat(),
    );
    assert!(work(&mut s, &mut builder).is_empty());
}

#[test]
fn parts_that_were_not_asked_for_or_are_wrong_end_the_session() {
    let (module, code) = module();
    let all = parts(&module, &code);
    let begun = |limits: Limits| {
        let mut s = session(limits);
        receive(&mut s, &[hello(), supplied(A, "", &module, None)].concat());
        let BuildRequest { place, serial, .. } = s.take_requests().remove(0);
        s.built(NOW, (place, serial), BuildResult::Missing(vec![module]), &mut Vec::new());
        s
    };
    let error =
        |limits: Limits, bytes: &[u8]| begun(limits).receive(NOW, bytes, &mut Vec::new()).unwrap_err();
    let limits = Limits::default();
    let wrong =
        |bytes: &[u8], what: &'static str| assert_eq!(error(limits, bytes), SessionError::Object(what));
    wrong(&parts(&[7; 32], &code)[0], "was not asked for");
    wrong(&all[1], "does not come in order");
    wrong(&[&all[0][..], &all[0]].concat(), "does not come in order");
    wrong(&[&all[0][..], &parts(&module, &code[..150])[1]].concat(), "does not come in order");
    let other: Vec<u8> = code.iter().map(|byte| byte ^ 1).collect();
    wrong(&parts(&module, &other).concat(), "has another SHA-256");
    let small = Limits { object_bytes: 100, ..limits };
    assert_eq!(error(small, &all[0]), SessionError::Object("is longer than permitted"));
    let mut long = vec![0; PART_LEN_MAX + 100];
    let record = Record::Part { object: &module, total: u32::MAX, offset: 0, bytes: &[1; 9] };
    let len = record.emit_head(None, &mut long).unwrap();
    wrong(&long[..len], "is longer than permitted");
    // Once it is whole, more of it is not asked for.
    wrong(&[all.concat(), all[0].clone()].concat(), "was not asked for");
    // A stage is described with another module.
    let again = supplied(A, "", &[7; 32], None);
    assert_eq!(error(limits, &again), SessionError::UnknownStage(A));
}

#[test]
fn another_stage_asks_when_the_one_that_has_asked_has_ended() {
    let (mut s, mut builder) = (session(Limits::default()), HandlerBuilder::new(SandboxLimits::default()));
    let (module, code) = module();
    let begin = [hello(), supplied(A, "", &module, None), supplied(B, "", &module, None)].concat();
    receive(&mut s, &begin);
    assert_eq!(wants(&work(&mut s, &mut builder)), [module]);
    receive(&mut s, &call(B, 1, &[b"x"]));
    let nothing = emit(Record::Part { object: &module, total: 0, offset: 0, bytes: &[] });
    let again = receive(&mut s, &[emit(Record::Gone { place: A }), nothing.clone()].concat());
    let Some((Record::Want { place, object }, _)) = Record::parse(&again).unwrap() else { panic!() };
    assert_eq!((place, *object), (B, module));
    for part in parts(&module, &code) {
        receive(&mut s, &part);
    }
    // It runs, and finds no field: the stage has no formats.
    assert_eq!(names(&work(&mut s, &mut builder)), [("fault", 3)]);
    // Nobody waits for it now.
    assert!(s.receive(NOW, &nothing, &mut Vec::new()).is_err());
}
