//! Runs in: test. A small object store in memory that answers as Google Cloud Storage and as Azure
//! do, as far as one object at a time needs it. It ends with the test.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

type Objects = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// Starts a store. Returns its URL and the requests that it has seen: method, path, authorization.
pub(crate) fn start_fake_store() -> (String, Arc<Mutex<Vec<[String; 3]>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (objects, seen) = (Objects::default(), Arc::default());
    let requests: Arc<Mutex<Vec<[String; 3]>>> = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            answer_request(stream, &objects, &requests);
        }
    });
    (url, seen)
}

fn answer_request(stream: TcpStream, objects: &Objects, seen: &Mutex<Vec<[String; 3]>>) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let mut words = line.split_whitespace().map(str::to_owned);
    let (Some(method), Some(target)) = (words.next(), words.next()) else { return };
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let authorization = headers.get("authorization").cloned().unwrap_or_default();
    seen.lock().unwrap().push([method.clone(), target.clone(), authorization]);
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut objects = objects.lock().unwrap();
    let (status, content) = match method.as_str() {
        "GET" if query.contains("comp=list") => ("200 OK", AZURE_LIST.as_bytes().to_vec()),
        "GET" if query.contains("list-type=2") => ("200 OK", XML_LIST.as_bytes().to_vec()),
        "GET" => match objects.get(path) {
            Some(content) if headers.contains_key("range") => {
                ("206 Partial Content", content.clone())
            }
            Some(content) => ("200 OK", content.clone()),
            None => ("404 Not Found", Vec::new()),
        },
        "PUT" => {
            objects.insert(path.to_owned(), body);
            ("201 Created", Vec::new())
        }
        "DELETE" => match objects.remove(path) {
            Some(_) => ("202 Accepted", Vec::new()),
            None => ("404 Not Found", Vec::new()),
        },
        _ => ("405 Method Not Allowed", Vec::new()),
    };
    let length = content.len();
    let range = format!("Content-Range: bytes 0-{}/{length}\r\n", length.saturating_sub(1));
    let range = if status.starts_with("206") { range } else { String::new() };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nETag: \"1\"\r\n{range}\
         Last-Modified: Wed, 18 Mar 2026 10:00:00 GMT\r\nConnection: close\r\n\r\n"
    );
    let mut stream = reader.into_inner();
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(&content);
}

const AZURE_LIST: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\
    <EnumerationResults><Blobs></Blobs><NextMarker /></EnumerationResults>";
const XML_LIST: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
    <ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
