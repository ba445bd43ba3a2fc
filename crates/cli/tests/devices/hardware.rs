//! What a machine has besides processor and memory.

use std::path::Path;
use std::process::Command;

/// The QEMU of the machines.
pub const QEMU: &str = "qemu-system-x86_64";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hardware {
    /// An NVDIMM of this size, whose content is the file `nvdimm`. Firmware may say that it keeps
    /// its bytes without power.
    Nvdimm {
        bytes: u64,
        keeps_without_power: bool,
    },
    /// A file that the host caches, as memory.
    VirtioPmem,
    /// CXL memory, in the mode `pmem` or `ram`.
    CxlPersistent,
    CxlVolatile,
    /// A disk, `disk`, whose writes and flushes go to the file `log`, too.
    Disk {
        bytes: u64,
    },
}

impl Hardware {
    /// All drivers of all hardware.
    pub const DRIVERS: &[&str] = &[
        "nfit",
        "nd_pmem",
        "device_dax",
        "dax_pmem",
        "virtio_pci",
        "virtio_pmem",
        "virtio_blk",
        "cxl_acpi",
        "cxl_pci",
        "cxl_port",
        "cxl_mem",
        "cxl_pmem",
        "dax_cxl",
    ];

    /// Whether this QEMU has it, or what it lacks.
    pub fn check(self) -> Result<(), String> {
        let known = |word: &str, of: &[&str]| {
            let output = Command::new(QEMU).args(of).output().map_err(|error| format!("{QEMU}: {error}"))?;
            let has_it = String::from_utf8_lossy(&output.stdout).contains(word);
            has_it.then_some(()).ok_or(format!("this QEMU has no {word}"))
        };
        match self {
            Hardware::CxlPersistent => known("lsa", &["-device", "cxl-type3,help"]),
            Hardware::CxlVolatile => known("volatile-memdev", &["-device", "cxl-type3,help"]),
            _ => Ok(()),
        }
    }

    /// Drivers, and those that they need are loaded with them.
    pub fn drivers(self) -> &'static [&'static str] {
        match self {
            Hardware::Nvdimm { .. } => &["nfit", "nd_pmem", "device_dax", "dax_pmem"],
            Hardware::VirtioPmem => &["virtio_pci", "virtio_pmem", "nd_pmem", "device_dax", "dax_pmem"],
            Hardware::CxlPersistent => {
                &["cxl_acpi", "cxl_pci", "cxl_port", "cxl_mem", "cxl_pmem", "nd_pmem", "device_dax", "dax_pmem"]
            }
            Hardware::CxlVolatile => &["cxl_acpi", "cxl_pci", "cxl_port", "cxl_mem", "device_dax", "dax_cxl"],
            Hardware::Disk { .. } => &["virtio_pci", "virtio_blk"],
        }
    }

    /// The words of QEMU's option `-machine`.
    pub fn machine(self) -> Option<&'static str> {
        match self {
            Hardware::Nvdimm { keeps_without_power: true, .. } => Some("nvdimm=on,nvdimm-persistence=mem-ctrl"),
            Hardware::Nvdimm { .. } => Some("nvdimm=on"),
            Hardware::CxlPersistent | Hardware::CxlVolatile => {
                Some("cxl=on,cxl-fmw.0.targets.0=bridge,cxl-fmw.0.size=4G")
            }
            Hardware::VirtioPmem | Hardware::Disk { .. } => None,
        }
    }

    /// Further options of QEMU, which the first call makes files for in `place`.
    pub fn options(self, place: &Path) -> Vec<String> {
        let file = |name: &str, bytes: u64| {
            std::fs::File::create(place.join(name)).unwrap().set_len(bytes).unwrap();
            place.join(name).display().to_string()
        };
        let memory = |name: &str, bytes: u64| {
            format!("-object memory-backend-file,id={name},share=on,mem-path={},size={bytes}", file(name, bytes))
        };
        let bridge =
            "-device pxb-cxl,bus_nr=12,bus=pcie.0,id=bridge -device cxl-rp,bus=bridge,id=root_port,chassis=0,slot=2";
        let options = match self {
            Hardware::Nvdimm { bytes, .. } => {
                format!("{} -device nvdimm,id=device,memdev=nvdimm,label-size=128K", memory("nvdimm", bytes))
            }
            Hardware::VirtioPmem => format!("{} -device virtio-pmem-pci,memdev=virtio", memory("virtio", 128 << 20)),
            Hardware::CxlPersistent => format!(
                "{} {} {bridge} -device cxl-type3,bus=root_port,memdev=cxl,lsa=labels,id=device",
                memory("cxl", 256 << 20),
                memory("labels", 1 << 20)
            ),
            Hardware::CxlVolatile => {
                format!(
                    "{} {bridge} -device cxl-type3,bus=root_port,volatile-memdev=cxl,id=device",
                    memory("cxl", 256 << 20)
                )
            }
            // QEMU merges requests of Linux 6.12 into ones of as many pieces as the host writes at
            // once. The log puts a header before them, which is one too many: the host refuses.
            Hardware::Disk { bytes } => format!(
                "-blockdev driver=file,node-name=disk,filename={} \
                 -blockdev driver=file,node-name=log,cache.no-flush=on,filename={} \
                 -blockdev driver=blklogwrites,node-name=logged,file=disk,log=log,log-super-update-interval=1 \
                 -device virtio-blk-pci,drive=logged,discard=off,write-zeroes=off,request-merging=off",
                file("disk", bytes),
                file("log", 0)
            ),
        };
        options.split_whitespace().map(str::to_owned).collect()
    }
}
