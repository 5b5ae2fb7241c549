//! Lines, and their mistakes.

use super::*;
use proptest::prelude::*;

#[test]
fn the_documented_forms_are_parsed() {
    let both: StoreConfig = "ram:256M+disk:/var/tmp,size=2GiB".parse().unwrap();
    assert_eq!(both.ram, Some(256 << 20));
    assert_eq!(both.disk, Some(DiskConfig::new("/var/tmp", 2 << 30)));
    assert_eq!(both.to_string(), "ram:256MiB+disk:/var/tmp,size=2GiB");
    let remote: StoreConfig = "ram:256M+remote:4G".parse().unwrap();
    assert_eq!(remote.disk, Some(DiskConfig::remote(4 << 30)));
    assert_eq!(remote.to_string().parse::<StoreConfig>(), Ok(remote));
    let line = "ram:256MiB+remote:4GiB+disk:/var/tmp,size=8GiB,written";
    let all: StoreConfig = line.parse().unwrap();
    assert_eq!(all.to_string(), line);
    assert!(all.is_remote() && !all.has_file());
    let disk = all.disk.unwrap();
    assert_eq!((disk.size, disk.space()), (4 << 30, 8 << 30));
    assert_eq!(disk.file().unwrap().size, 8 << 30);
    let line = "ram:1MiB+opendal:s3://b/a?x=,size=1,size=2GiB+disk:/var/tmp,size=8GiB,written";
    let objects: StoreConfig = line.parse().unwrap();
    assert_eq!(objects.to_string(), line);
    assert_eq!(objects.object_store(), Some("s3://b/a?x=,size=1"));
    let disk = objects.disk.unwrap();
    assert_eq!((disk.size, disk.space()), (2 << 30, 8 << 30));
}

#[test]
fn a_url_may_hold_what_separates_options() {
    let line = "ram:1MiB+opendal:s3://b/a+b,c?region=eu&x=,size=1,size=2GiB";
    let config: StoreConfig = line.parse().unwrap();
    let url = "s3://b/a+b,c?region=eu&x=,size=1";
    assert_eq!(config.object_store(), Some(url));
    assert_eq!(config.to_string(), line);
}

#[test]
fn a_path_may_hold_a_plus() {
    let config: StoreConfig = "disk:/a+b/c,size=1M+ram:1M".parse().unwrap();
    let place = DiskLocation::File(PathBuf::from("/a+b/c"));
    assert_eq!(config.disk.unwrap().place, place);
}

#[test]
fn an_error_names_the_mistake() {
    for (text, part) in [
        ("ram:0", "too small"),
        ("ram:64X", "not a size"),
        ("ram:", "not a size"),
        ("ram:-5M", "not a size"),
        ("ram:1.5G", "not a size"),
        ("ram:99999999999999999999", "too large"),
        ("ram:9999T", "too large"),
        ("ram:1M+ram:1M", "twice"),
        ("disk:,size=1G", "needs a path"),
        ("disk:/tmp", "needs a size"),
        ("disk:2G", "disk:/var/tmp,size=2G"),
        ("disk:/tmp,size=0", "too small"),
        ("disk:/tmp,size=1G,size=2G", "two sizes"),
        ("disk:/tmp,colour=red,size=1G", "unknown option"),
        ("disk:/tmp,size=1G,grow,written", "not both"),
        ("remote:1G+remote:1G", "twice"),
        ("disk:/tmp,size=1G+remote:1G", "remote: before disk:"),
        ("remote:1G+disk:/tmp,size=1G+disk:/tmp,size=1G", "twice"),
        ("remote:1G+disk:/tmp,size=1G+remote:1G", "twice"),
        ("remote:1G+disk:/tmp,size=1G,grow", "written alone"),
        ("remote:1G+disk:/tmp,size=0", "too small"),
        ("remote:0", "too small"),
        ("opendal:fs:///tmp", "needs a size"),
        ("opendal:fs:///tmp,size=1", "too small"),
        (
            "disk:/tmp,size=1G+opendal:fs:///tmp,size=1G",
            "remote: before disk:",
        ),
        (
            "opendal:fs:///tmp,size=1G+disk:/tmp,size=1G,grow",
            "written alone",
        ),
        (
            "opendal:fs:///tmp,size=1G+disk:/tmp,size=1G+disk:/tmp,size=1G",
            "disk: is given twice",
        ),
        (
            "opendal:fs:///tmp,size=1G+opendal:fs:///tmp,size=1G",
            "opendal: is given twice",
        ),
        ("remote:1G+opendal:fs:///tmp,size=1G", "leave the other out"),
        ("tape:1G", "no store"),
        ("", "no store"),
    ] {
        let error = text.parse::<StoreConfig>().unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn options_and_faults_survive_display_and_parsing() {
    let grows = "disk:/tmp,size=1GiB,grow";
    assert_eq!(grows.parse::<StoreConfig>().unwrap().to_string(), grows);
    let text = "disk:/tmp,size=1MiB,written,fail=eio@1000,slow=200us";
    let config: StoreConfig = text.parse().unwrap();
    assert_eq!(config.to_string(), text);
}

proptest! {
    #[test]
    fn a_displayed_line_parses_to_the_same(ram in MIN_RAM..MAX_SIZE, disk in MIN_DISK..MAX_SIZE) {
        let config = StoreConfig { ram: Some(ram), disk: Some(DiskConfig::new("/x/y", disk)) };
        prop_assert_eq!(config.to_string().parse::<StoreConfig>().unwrap(), config);
    }
}
