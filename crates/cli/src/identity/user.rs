//! Runs in: server (root until it is confined, then its own user).
//!
//! Chooses the user that the server becomes: the named one, else `cloche`, else an id that no
//! account has. Reads `/etc/passwd` and `/etc/group`, and changes nothing.

use std::fs;

/// The default user name.
const USUAL_NAME: &str = "cloche";
/// The default id if there is no such user: above the ids of systemd's dynamic users (61184 to
/// 65519), below the overflow ids (65534, 65535), and within the range that containers map.
const UNASSIGNED: u32 = 65_529;
/// Ids from here on are used by images and guests.
const FIRST_GUEST: u32 = 0x7000_0000;

/// The user that the server runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerUser {
    /// Started as root: becomes another user.
    Become {
        /// Its id.
        uid: u32,
        /// The id of its only group.
        gid: u32,
        /// Its name, if it has one.
        name: Option<String>,
    },
    /// Started as an ordinary user, or as root where no other id exists: keeps the user.
    Keep {
        /// Its id.
        uid: u32,
    },
}

/// Why the server cannot become the user.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UserError {
    #[error("--user {0}: only root can become another user; start cloche as root or leave it out")]
    NotRoot(String),
    #[error("--user {0}: no such user or group in /etc/passwd and /etc/group")]
    Unknown(String),
    #[error("--user {0}: the server does not run as root; name an ordinary user")]
    Root(String),
    #[error("--user {0}: ids from 1879048192 on belong to sandboxes; name another user")]
    Guest(String),
    #[error("--user {0}: this container does not map that id; name a user that it has")]
    NotMapped(String),
    #[error(
        "the id {UNASSIGNED} is in use on this host; create a user named cloche or give --user"
    )]
    Taken,
}

/// The accounts and id mappings of this host.
struct HostAccounts {
    passwd: String,
    group: String,
    uid_map: String,
    gid_map: String,
}

impl ServerUser {
    /// Chooses the user for this start.
    pub(crate) fn choose(asked: Option<&str>) -> Result<Self, UserError> {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let accounts = HostAccounts {
            passwd: read("/etc/passwd"),
            group: read("/etc/group"),
            uid_map: read("/proc/self/uid_map"),
            gid_map: read("/proc/self/gid_map"),
        };
        choose_among(&accounts, asked, rustix::process::geteuid().as_raw())
    }

    /// The ids to which files are given, if this process may give them away.
    pub(crate) fn owner(&self) -> Option<(u32, u32)> {
        match self {
            Self::Become { uid, gid, .. } => Some((*uid, *gid)),
            Self::Keep { .. } => None,
        }
    }

    /// The id of the server's user.
    pub(crate) fn uid(&self) -> u32 {
        match self {
            Self::Become { uid, .. } | Self::Keep { uid } => *uid,
        }
    }
}

fn choose_among(
    accounts: &HostAccounts,
    asked: Option<&str>,
    euid: u32,
) -> Result<ServerUser, UserError> {
    let Some(asked) = asked else { return choose_default(accounts, euid) };
    let (uid, gid, name) =
        accounts.find_user(asked).ok_or_else(|| UserError::Unknown(asked.to_owned()))?;
    if euid != 0 {
        return if uid == euid {
            Ok(ServerUser::Keep { uid })
        } else {
            Err(UserError::NotRoot(asked.to_owned()))
        };
    }
    if uid == 0 || gid == 0 {
        return Err(UserError::Root(asked.to_owned()));
    }
    if uid >= FIRST_GUEST || gid >= FIRST_GUEST {
        return Err(UserError::Guest(asked.to_owned()));
    }
    if !accounts.maps_ids(uid, gid) {
        return Err(UserError::NotMapped(asked.to_owned()));
    }
    Ok(ServerUser::Become { uid, gid, name })
}

fn choose_default(accounts: &HostAccounts, euid: u32) -> Result<ServerUser, UserError> {
    if euid != 0 {
        return Ok(ServerUser::Keep { uid: euid });
    }
    if let Some((uid, gid, name)) = accounts.find_user(USUAL_NAME)
        && uid != 0
        && gid != 0
        && accounts.maps_ids(uid, gid)
    {
        return Ok(ServerUser::Become { uid, gid, name });
    }
    if !accounts.maps_ids(UNASSIGNED, UNASSIGNED) {
        // Root in a user namespace with a single id, which is an ordinary user on the host.
        return Ok(ServerUser::Keep { uid: euid });
    }
    let has = |text: &str| split_account_lines(text).any(|line| line.get(2) == Some(&"65529"));
    if has(&accounts.passwd) || has(&accounts.group) {
        return Err(UserError::Taken);
    }
    Ok(ServerUser::Become { uid: UNASSIGNED, gid: UNASSIGNED, name: None })
}

/// Splits the lines of an account file into their fields.
fn split_account_lines(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().map(|line| line.split(':').collect())
}

impl HostAccounts {
    /// Resolves `NAME`, `UID`, `NAME:GROUP` or `UID:GID` to user, group and name.
    fn find_user(&self, asked: &str) -> Option<(u32, u32, Option<String>)> {
        let (user, group) = match asked.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (asked, None),
        };
        let number = user.parse::<u32>().ok();
        let known = split_account_lines(&self.passwd).find(|line| match number {
            Some(_) => line.get(2) == Some(&user),
            None => line.first() == Some(&user),
        });
        let field = |at: usize| known.as_ref()?.get(at)?.parse::<u32>().ok();
        let uid = number.or_else(|| field(2))?;
        let gid = match group {
            Some(group) => self.group_id(group)?,
            None => field(3).unwrap_or(uid),
        };
        let name = known.as_ref().and_then(|line| line.first()).map(|name| (*name).to_owned());
        Some((uid, gid, name))
    }

    fn group_id(&self, group: &str) -> Option<u32> {
        let named = || split_account_lines(&self.group).find(|line| line.first() == Some(&group));
        group.parse().ok().or_else(|| named()?.get(2)?.parse().ok())
    }

    /// Whether this user namespace maps both ids.
    fn maps_ids(&self, uid: u32, gid: u32) -> bool {
        let has = |map: &str, id: u32| {
            map.lines().any(|line| {
                let mut words = line.split_whitespace().map(|word| word.parse::<u64>().ok());
                match (words.next().flatten(), words.nth(1).flatten()) {
                    (Some(first), Some(count)) => (first..first + count).contains(&u64::from(id)),
                    _ => false,
                }
            })
        };
        has(&self.uid_map, uid) && has(&self.gid_map, gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts(passwd: &str) -> HostAccounts {
        let all = "         0          0 4294967295\n".to_owned();
        HostAccounts {
            passwd: format!("root:x:0:0:root:/root:/bin/sh\nweb:x:33:34::/:/bin/sh\n{passwd}"),
            group: "root:x:0:\nstaff:x:50:\n".to_owned(),
            uid_map: all.clone(),
            gid_map: all,
        }
    }

    fn become_user(uid: u32, gid: u32, name: Option<&str>) -> ServerUser {
        ServerUser::Become { uid, gid, name: name.map(ToOwned::to_owned) }
    }

    #[test]
    fn root_becomes_cloche_or_an_unassigned_id() {
        let named = accounts("cloche:x:990:991::/:/bin/false\n");
        assert_eq!(choose_among(&named, None, 0), Ok(become_user(990, 991, Some("cloche"))));
        let without = accounts("");
        assert_eq!(choose_among(&without, None, 0), Ok(become_user(65_529, 65_529, None)));
        let taken = accounts("somebody:x:65529:65529::/:/bin/false\n");
        assert_eq!(choose_among(&taken, None, 0), Err(UserError::Taken));
    }

    #[test]
    fn user_names_ids_and_groups_are_resolved() {
        let host = accounts("");
        for (asked, uid, gid, name) in [
            ("web", 33, 34, Some("web")),
            ("33", 33, 34, Some("web")),
            ("web:staff", 33, 50, Some("web")),
            ("700:701", 700, 701, None),
            ("700", 700, 700, None),
        ] {
            assert_eq!(choose_among(&host, Some(asked), 0), Ok(become_user(uid, gid, name)));
        }
        for asked in ["nosuch", "web:nosuch", ""] {
            let refused = Err(UserError::Unknown(asked.to_owned()));
            assert_eq!(choose_among(&host, Some(asked), 0), refused);
        }
        for asked in ["root", "0", "0:5", "web:0"] {
            assert_eq!(choose_among(&host, Some(asked), 0), Err(UserError::Root(asked.into())));
        }
        let guest = Err(UserError::Guest("1879048192".to_owned()));
        assert_eq!(choose_among(&host, Some("1879048192"), 0), guest);
    }

    #[test]
    fn an_ordinary_user_is_kept() {
        let host = accounts("");
        assert_eq!(choose_among(&host, None, 1000), Ok(ServerUser::Keep { uid: 1000 }));
        assert_eq!(choose_among(&host, Some("web"), 33), Ok(ServerUser::Keep { uid: 33 }));
        let refused = Err(UserError::NotRoot("web".to_owned()));
        assert_eq!(choose_among(&host, Some("web"), 1000), refused);
        let one_id = HostAccounts {
            uid_map: "0 1000 1\n".into(),
            gid_map: "0 1000 1\n".into(),
            ..accounts("")
        };
        assert_eq!(choose_among(&one_id, None, 0), Ok(ServerUser::Keep { uid: 0 }));
    }
}
