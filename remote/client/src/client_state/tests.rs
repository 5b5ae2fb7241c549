//! What is saved is found again, wherever the process ended.

use super::*;

fn saved(address: &str) -> SavedServer {
    SavedServer {
        address: address.to_owned(),
        control: Some(([127, 0, 0, 1], 7000).into()),
        incarnation: Some(Incarnation::new(HostId(7), u128::MAX - 1, 3)),
        permit: None,
    }
}

fn copy(server: usize, state: CopyState, generation: u64) -> ObjectCopy {
    ObjectCopy {
        server,
        state,
        is_leaving: false,
        generation: Generation(generation),
    }
}

#[test]
fn the_latest_whole_entry_of_a_server_counts() {
    let state = ClientState::new(1, 0, 0).unwrap();
    assert!(state.servers().is_empty());
    assert!(state.save_server(0, &saved("a:1")) && state.save_server(0, &saved("b:1")));
    assert!(state.save_server(1, &saved("c:1")));
    assert_eq!(state.servers(), [saved("b:1"), saved("c:1")]);
    // A process that ends while it writes the third.
    let older = state.server_words(0, 0);
    store(&older[0], 9);
    assert_eq!(state.servers()[0], saved("b:1"));
    assert!(!state.save_server(0, &saved(&"x".repeat(SERVER_BYTES))));
    assert_eq!(state.servers()[0], saved("b:1"));
}

#[test]
fn a_server_is_kept_where_two_processes_end_while_they_save_it() {
    let state = ClientState::new(1, 0, 0).unwrap();
    assert!(state.save_server(0, &saved("a:1")) && state.save_server(0, &saved("b:1")));
    let numbers = || [0, 1].map(|entry| load(&state.server_words(0, entry)[0]));
    // The first process ends after its first store, over the older entry.
    let before = numbers();
    store(&state.server_words(0, 0)[0], 3);
    assert_eq!(state.servers(), [saved("b:1")]);
    assert!(before.iter().all(|number| *number < 3), "{before:?}");
    // The next one saves the server at its start, and ends before the hash is right.
    let before = numbers();
    assert!(state.save_server(0, &saved("b:1")));
    let written = usize::from(numbers()[1] != before[1]);
    store(&state.server_words(0, written)[1], 0);
    assert_eq!(state.servers(), [saved("b:1")]);
}

#[test]
fn only_current_copies_are_found_again() {
    let state = ClientState::new(2, 0, 0).unwrap();
    let mut object = PagingObject::empty();
    object.latest = Generation(5);
    object.copies = vec![
        copy(31, CopyState::Current, 4),
        copy(0, CopyState::Copying, 5),
    ];
    let save = |object: &PagingObject| {
        state.remove_copies(1, object);
        state.save_copies(1, object);
    };
    save(&object);
    let first = copy(31, CopyState::Current, 4);
    assert_eq!(state.object(1), (Generation(5), vec![first]));
    object.copies[1].state = CopyState::Current;
    save(&object);
    let second = copy(0, CopyState::Current, 5);
    assert_eq!(state.object(1).1, [first, second]);
    object.copies.remove(0);
    save(&object);
    assert_eq!(state.object(1), (Generation(5), vec![second]));
    assert_eq!(state.object(0), (Generation(0), Vec::new()));
}

#[test]
fn an_object_that_moves_has_a_current_copy_after_each_step_of_a_save() {
    let state = ClientState::new(1, 0, 0).unwrap();
    let mut object = PagingObject::empty();
    object.latest = Generation(2);
    object.copies = vec![
        copy(3, CopyState::Current, 1),
        copy(4, CopyState::Copying, 2),
    ];
    state.remove_copies(0, &object);
    state.save_copies(0, &object);
    // The copy arrives, and the first one goes, before the next save.
    object.copies = vec![copy(4, CopyState::Current, 2)];
    state.promote_copies(0, &object);
    assert_eq!(state.object(0).1.len(), 2);
    state.remove_copies(0, &object);
    assert_eq!(state.object(0).1, object.copies);
    state.save_copies(0, &object);
    assert_eq!(state.object(0), (Generation(2), object.copies));
}

#[test]
fn names_and_keys_are_found_again() {
    let state = ClientState::new(1, 0, PAGE).unwrap();
    let client = saved("").incarnation.unwrap();
    state.set_client(client);
    let key: [u8; KEY] = std::array::from_fn(|at| at as u8);
    state.set_key(&key);
    assert_eq!((state.client(), state.key()), (client, key));
    let header = state.kept_header();
    assert_eq!(header.served(), 0);
    header.count_served();
    assert_eq!(header.served(), 1);
    assert_eq!((header.count_start(), header.count_start()), (0, 1));
}
