//! Runs in: broker (no capabilities).
//!
//! The resolver that a cell sees. It answers only for names that the policy allows, only with
//! addresses that the floor permits, and pins them for the session.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use cloche_model::{DenialReason, HostName, NetworkPolicy, NetworkProtocol};
use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{
        DNSClass, Name, RData, Record, RecordType,
        rdata::{A, AAAA},
    },
};

use super::{policy::allows_name, session::Session};

/// The longest answer to a client that names no size.
const PLAIN_LIMIT: usize = 512;
/// The longest answer over UDP to any client.
const UDP_LIMIT: usize = 1400;
/// A name that only a wildcard allows may have so many bytes: its labels are data on their way to
/// the name server of the suffix.
const MOST_WILDCARD_NAME: usize = 128;

/// What a query asks for.
#[derive(Debug)]
struct AskedName {
    name: HostName,
    query: Query,
}

/// Answers a query. `None` if it is not one.
pub(super) async fn answer_query(session: &Session, bytes: &[u8], by_tcp: bool) -> Option<Vec<u8>> {
    let question = read_question(bytes)?;
    let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
    answer.metadata.recursion_desired = question.metadata.recursion_desired;
    answer.metadata.recursion_available = true;
    answer.add_queries(question.queries.clone());
    match read_asked_name(&question) {
        Ok(asked) => match session.take_dns_query(&asked.name) {
            true => fill_answer(session, &asked, &mut answer).await,
            false => answer.metadata.response_code = ResponseCode::ServFail,
        },
        Err(code) => answer.metadata.response_code = code,
    }
    let limit = match (by_tcp, &question.edns) {
        (true, _) => usize::from(u16::MAX),
        (false, Some(edns)) => usize::from(edns.max_payload()).clamp(PLAIN_LIMIT, UDP_LIMIT),
        (false, None) => PLAIN_LIMIT,
    };
    if question.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_LIMIT as u16);
        answer.set_edns(edns);
    }
    let encoded = answer.to_vec().ok()?;
    if encoded.len() <= limit {
        return Some(encoded);
    }
    answer.answers.clear();
    answer.metadata.truncation = true;
    answer.to_vec().ok()
}

/// Reads a query with one question.
fn read_question(bytes: &[u8]) -> Option<Message> {
    let question = Message::from_vec(bytes).ok()?;
    (question.metadata.message_type == MessageType::Query).then_some(question)
}

/// The name that a query asks for, or the code of its refusal.
fn read_asked_name(question: &Message) -> Result<AskedName, ResponseCode> {
    if question.metadata.op_code != OpCode::Query {
        return Err(ResponseCode::NotImp);
    }
    let [query] = question.queries.as_slice() else {
        return Err(ResponseCode::FormErr);
    };
    if query.query_class != DNSClass::IN {
        return Err(ResponseCode::NotImp);
    }
    let labels: Vec<&[u8]> = query.name.iter().collect();
    // A dot inside of a label would be a border between labels in the name.
    if labels.iter().any(|label| label.contains(&b'.')) {
        return Err(ResponseCode::NXDomain);
    }
    let name = HostName::from_wire(&labels.join(&b'.')).map_err(|_| ResponseCode::NXDomain)?;
    Ok(AskedName { name, query: query.clone() })
}

/// The name that bytes ask for, if they are a query that is answered.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn asked_name_of(bytes: &[u8]) -> Option<HostName> {
    read_asked_name(&read_question(bytes)?).ok().map(|asked| asked.name)
}

async fn fill_answer(session: &Session, asked: &AskedName, answer: &mut Message) {
    let (name, policy) = (&asked.name, &session.policy);
    if !allows_name(policy, name) {
        session.deny_name(name, DenialReason::NotAllowed);
        answer.metadata.response_code = ResponseCode::NXDomain;
        return;
    }
    let long = name.as_str().len() > MOST_WILDCARD_NAME && only_by_wildcard(policy, name);
    if long || !session.take_pin_name(name) {
        session.deny_name(name, DenialReason::LimitReached);
        answer.metadata.response_code = ResponseCode::NXDomain;
        return;
    }
    match asked.query.query_type {
        RecordType::A => resolve_addresses(session, asked, answer).await,
        RecordType::AAAA if session.shared.ipv6 => resolve_addresses(session, asked, answer).await,
        // An unknown name, not an error: some resolvers wait seconds after an error.
        RecordType::PTR => answer.metadata.response_code = ResponseCode::NXDomain,
        kind if is_forwarded(policy, kind) => forward_records(session, asked, answer).await,
        // No data. HTTPS and SVCB would tell how to hide the name from the check of first bytes.
        _ => {}
    }
}

/// Records beside addresses, for a policy that has no names to protect.
fn is_forwarded(policy: &NetworkPolicy, kind: RecordType) -> bool {
    const PLAIN: [RecordType; 7] = [
        RecordType::MX,
        RecordType::TXT,
        RecordType::SRV,
        RecordType::NS,
        RecordType::SOA,
        RecordType::CAA,
        RecordType::CNAME,
    ];
    matches!(policy, NetworkPolicy::Unrestricted) && PLAIN.contains(&kind)
}

fn only_by_wildcard(policy: &NetworkPolicy, name: &HostName) -> bool {
    use cloche_model::{HostPattern, RuleTarget};
    let exact = |target: &RuleTarget| matches!(target, RuleTarget::Host(HostPattern::Exact(exact)) if exact == name);
    matches!(policy, NetworkPolicy::Allowlist { .. })
        && !policy.rules().iter().any(|rule| exact(&rule.target))
}

async fn resolve_addresses(session: &Session, asked: &AskedName, answer: &mut Message) {
    let kind = asked.query.query_type;
    let Ok(resolved) = session.shared.resolver.resolve(&asked.name, kind).await else {
        answer.metadata.response_code = ResponseCode::ServFail;
        return;
    };
    answer.metadata.response_code = resolved.code;
    let found = resolved.addresses.len();
    let mut addresses = resolved.addresses;
    addresses.retain(|address| session.shared.floor.permits_ip(*address));
    if addresses.is_empty() && found > 0 {
        session.deny_name(&asked.name, DenialReason::AddressBlocked);
    }
    session.pin(&asked.name, &addresses, resolved.ttl);
    let ttl = resolved.ttl.clamp(Duration::from_secs(5), Duration::from_secs(60)).as_secs();
    for address in addresses {
        // Aliases are left out: the asked name is what the policy knows.
        answer.add_answer(address_record(&asked.query.name, address, ttl as u32));
    }
}

fn address_record(name: &Name, address: IpAddr, ttl: u32) -> Record {
    let data = match address {
        IpAddr::V4(address) => RData::A(A(address)),
        IpAddr::V6(address) => RData::AAAA(AAAA(address)),
    };
    Record::from_rdata(name.clone(), ttl, data)
}

async fn forward_records(session: &Session, asked: &AskedName, answer: &mut Message) {
    match session.shared.resolver.ask(&asked.name, asked.query.query_type).await {
        Ok(found) => {
            answer.metadata.response_code = found.metadata.response_code;
            answer.add_answers(found.answers);
        }
        Err(_) => answer.metadata.response_code = ResponseCode::ServFail,
    }
}

impl Session {
    fn deny_name(&self, name: &HostName, reason: DenialReason) {
        self.count_denied(name.as_str(), 53, NetworkProtocol::Dns, reason);
    }

    fn take_pin_name(&self, name: &HostName) -> bool {
        self.lock().pins.take_name(name)
    }

    fn pin(&self, name: &HostName, addresses: &[IpAddr], ttl: Duration) {
        self.lock().pins.pin(name, addresses, ttl, Instant::now());
    }

    fn take_dns_query(&self, name: &HostName) -> bool {
        let taken = self.lock().dns_queries.try_take(Instant::now());
        if !taken {
            self.deny_name(name, DenialReason::LimitReached);
        }
        taken
    }
}
