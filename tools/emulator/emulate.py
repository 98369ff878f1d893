"""Runs Python, torch and this project on an emulated x86 CPU, for kernels of CPUs not at hand.

    python tools/emulator/emulate.py build
    python tools/emulator/emulate.py image
    python tools/emulator/emulate.py run -- tools/emulator/check.py quantized --problems 50

README.md says what it needs and how long it takes. What it makes is in one folder, --cache.
"""

import argparse
import hashlib
import importlib.metadata
import lzma
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

RELEASE = "trixie"  # Debian's release that has this Bochs
BOCHS = "3.0+dfsg-1"
BOCHS_SHA256 = "78f6c73d4a6472d5130a87ab9dc306d02c7c71ed8e25b3a8ef642e2a7acd282b"
OPTIONS = """
    --with-nogui --enable-x86-64 --enable-cpu-level=6 --enable-avx --enable-evex --enable-amx
    --enable-protection-keys --enable-memtype=no --enable-pci --enable-all-optimizations
    --enable-handlers-chaining --enable-repeat-speedups --enable-fast-function-calls
    --disable-docbook --disable-large-ramfile --disable-perfmon
"""

CYLINDER = 16 * 63 * 512  # bytes: the sizes of disks are multiples
KERNEL_SECTOR = 2048  # of the boot disk; what GRUB itself takes is before it

# The boot disk, the root file system and the job are sda, sdb and sdc.
KERNEL_ARGUMENTS = """console=ttyS0,115200 loglevel=3 mitigations=off nokaslr nopti no5lvl
    tsc=reliable random.trust_cpu=on panic=60 norandmaps nowatchdog audit=0 apparmor=0 selinux=0
    cryptomgr.notests ipv6.disable=1 transparent_hugepage=always"""
INIT = """#!/bin/sh
PATH=/bin
busybox mount -t proc proc /proc
busybox mount -t devtmpfs dev /dev
exec </dev/ttyS0 >/dev/ttyS0 2>&1
for m in MODULES; do busybox insmod /m/$m; done
n=0; while [ ! -b /dev/sdc ] && [ $n -lt 100 ]; do busybox sleep 0.1; n=$((n+1)); done
busybox mount -t ext4 -o ro,noatime /dev/sdb /root
cd /root
for i in proc:proc sysfs:sys devtmpfs:dev tmpfs:dev/shm tmpfs:tmp tmpfs:job; do
  busybox mkdir -p ${i#*:}; busybox mount -t ${i%:*} none ${i#*:}
done
exec busybox chroot /root /bin/sh -c '
  export PATH=/bin HOME=/tmp LANG=C.UTF-8 PYTHONPATH=/job:/py PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
  cd /job; tar x -f /dev/sdc
  sh ./job.sh </dev/null
  echo "=== exit status $?"
  poweroff -f'
"""

BOCHSRC = """
display_library: nogui
config_interface: textconfig
romimage: file=TOOLS/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=TOOLS/usr/share/vgabios/vgabios.bin
clock: sync=none, time0=utc
boot: disk
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata1: enabled=1, ioaddr1=0x170, ioaddr2=0x370, irq=15
com1: enabled=1, mode=file, dev=serial
pci: enabled=1, chipset=i440fx
speaker: enabled=0
log: log
panic: action=fatal
error: action=report
info: action=ignore
debug: action=ignore
"""


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def padded(data: bytes, multiple: int) -> bytes:
    return data + bytes(-len(data) % multiple)


def build(cache: Path) -> None:
    """Bochs, compiled; and the packages with Linux, GRUB, busybox and the BIOS, unpacked."""
    apt, tools, source = cache / "apt", cache / "tools", cache / "bochs-3.0"
    for folder in (tools, cache / "packages"):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in (apt / "lists/partial", apt / "cache/archives/partial", cache / "packages"):
        folder.mkdir(parents=True, exist_ok=True)
    own = platform.freedesktop_os_release()["VERSION_CODENAME"]
    targets = output("apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)").splitlines()
    mirror = next(line.split()[1] for line in targets if line.split()[0] == own)
    suites = [f"{kind} {mirror} {suite} main" for kind, suite in (("deb", own), ("deb", RELEASE))]
    lines = dict.fromkeys([*suites, f"deb-src {mirror} {RELEASE} main"])
    (apt / "sources.list").write_text("\n".join(lines) + "\n")
    places = {"Etc::SourceList": "sources.list", "State::Lists": "lists", "Cache": "cache"}
    options = [f"-oDir::{name}={apt / place}" for name, place in places.items()]
    options += ["-oDir::Etc::SourceParts=/dev/null", "-oAPT::Sandbox::User=root"]

    def get(*arguments: str) -> None:
        subprocess.run(["apt-get", "-q", *options, *arguments], check=True, cwd=cache / "packages")

    get("update")
    names = output("apt-cache", *options, "pkgnames", "linux-image-6").split()
    numbers = [re.fullmatch(r"linux-image-6\.12\.(\d+)\+deb13-amd64", name) for name in names]
    kernel = max((int(found[1]), found[0]) for found in numbers if found)[1]
    here = [f"{name}/{own}" for name in ("busybox-static", "grub-common", "grub-pc-bin")]
    get("download", *here, *(f"{name}/{RELEASE}" for name in ("bochsbios", "vgabios", kernel)))
    for package in (cache / "packages").glob("*.deb"):
        output("dpkg-deb", "-x", package, tools)

    if not (source / "Makefile").exists():
        get("source", "--download-only", "--tar-only", f"bochs={BOCHS}")
        (archive,) = (cache / "packages").glob("bochs_3.0*.orig.tar.xz")
        if hashlib.sha256(archive.read_bytes()).hexdigest() != BOCHS_SHA256:
            sys.exit(f"{archive} is not the file that the patch was made for")
        shutil.rmtree(source, ignore_errors=True)
        output("tar", "x", "-C", cache, "-f", archive)
        output("patch", "-d", source, "-p1", "-i", HERE / "bochs-3.0.patch")
        flags = [
            f"{name}=-O3 -march=native -fomit-frame-pointer" for name in ("CFLAGS", "CXXFLAGS")
        ]
        subprocess.run(["./configure", *OPTIONS.split(), *flags], check=True, cwd=source)
    subprocess.run(["make", f"-j{len(os.sched_getaffinity(0))}"], check=True, cwd=source)


def distributions(*names: str) -> Iterable[importlib.metadata.Distribution]:
    """Those that are installed, and all that they require."""
    found, todo = {}, [Requirement(name) for name in names]
    while todo:
        requirement = todo.pop()
        marker = requirement.marker
        if requirement.name in found or (marker and not marker.evaluate({"extra": ""})):
            continue
        found[requirement.name] = importlib.metadata.distribution(requirement.name)
        todo += map(Requirement, found[requirement.name].requires or [])
    return found.values()


def is_needed(file: importlib.metadata.PackagePath) -> bool:
    if file.parts[:2] == ("torch", "bin"):
        return file.name == "torch_shm_manager"
    return ".." not in file.parts and file.parts[:2] not in (
        ("torch", "include"),
        ("torch", "test"),
    )


def fill_root(root: Path, tools: Path) -> None:
    """Python where it is here, its packages in /py, the libraries that they load, and busybox."""
    for folder in ("bin", "etc", "lib64", "lib/x86_64-linux-gnu", "py", "proc sys dev tmp job"):
        for name in folder.split():
            (root / name).mkdir(parents=True)
    shutil.copy2(tools / "bin/busybox", root / "bin")
    for name in output(tools / "bin/busybox", "--list").split():
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")

    python, standard = Path(sys.executable).resolve(), sysconfig.get_path("stdlib")
    inside = root / python.relative_to("/")
    inside.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(python, inside)
    (root / "bin/python").symlink_to(python)
    left_out = ("site-packages", "dist-packages", "test", "idlelib", "tkinter", "config-*")
    ignored = shutil.ignore_patterns(*left_out, "ensurepip", "lib2to3")
    shutil.copytree(standard, root / standard[1:], symlinks=True, ignore=ignored)
    for distribution in distributions("torch", "numpy", "pytest", "hypothesis", "expecttest"):
        for file in filter(is_needed, distribution.files or []):
            if (path := Path(distribution.locate_file(file))).exists():
                (root / "py" / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, root / "py" / file)
    # Of several seconds that an import takes in the guest, compiling would be minutes.
    compiled = [sys.executable, "-m", "compileall", "-q", "-s", root, root / "py"]
    subprocess.run(compiled, check=False, stdout=subprocess.DEVNULL)

    files = [inside, *root.rglob("*.so*"), *(ROOT / "torch_dnnl").glob("*.so")]
    loaded = subprocess.run(["ldd", *files], check=False, capture_output=True, text=True).stdout
    for library in set(re.findall(r"=> (/\S+)", loaded)):
        if not library.startswith(str(root)):
            shutil.copy2(library, root / "lib/x86_64-linux-gnu")
    shutil.copy2("/lib64/ld-linux-x86-64.so.2", root / "lib64")


def modules(tools: Path, *names: str) -> dict[str, bytes]:
    """The kernel's modules of these names, each after those that it depends on."""
    found: dict[str, bytes] = {}
    for name in names:
        pattern = re.sub("[-_]", "[-_]", name) + ".ko.xz"
        for path in tools.glob(f"usr/lib/modules/*/kernel/**/{pattern}"):
            data = lzma.decompress(path.read_bytes())
            needs = re.search(rb"\0depends=([^\0]+)\0", data)
            found |= modules(tools, *(needs[1].decode().split(",") if needs else []))
            found[path.stem] = data
    return found


def initial_files(tools: Path) -> bytes:
    """An initramfs, as cpio: busybox, the modules for disks and ext4, and /init."""
    loaded = modules(tools, "ata_piix", "sd_mod", "crc32c_generic", "ext4")
    init = INIT.replace("MODULES", " ".join(loaded)).encode()
    folder, program = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755
    entries = [(name, folder, b"", (0, 0)) for name in ("bin", "m", "proc", "dev", "root")]
    entries += [("dev/console", stat.S_IFCHR | 0o600, b"", (5, 1))]
    entries += [("bin/sh", stat.S_IFLNK | 0o777, b"busybox", (0, 0))]
    programs = {"bin/busybox": (tools / "bin/busybox").read_bytes(), "init": init}
    programs |= {f"m/{name}": data for name, data in loaded.items()}
    entries += [(name, program, data, (0, 0)) for name, data in programs.items()]
    result = b""
    for number, (name, mode, data, device) in enumerate([*entries, ("TRAILER!!!", 0, b"", (0, 0))]):
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name) + 1, 0)
        head = "070701" + "".join(f"{field:08X}" for field in fields) + name + "\0"
        result += padded(head.encode(), 4) + padded(data, 4)
    return result


def boot_disk(tools: Path, work: Path) -> bytes:
    """GRUB, which finds Linux and the initramfs by the numbers of their sectors."""
    (path,) = tools.glob("boot/vmlinuz-*")
    linux, initial = padded(path.read_bytes(), 512), padded(initial_files(tools), 512)
    places, sector = [], KERNEL_SECTOR
    for data in (linux, initial):
        places.append(f"(hd0){sector}+{len(data) // 512}")
        sector += len(data) // 512
    arguments = " ".join(KERNEL_ARGUMENTS.split())
    (work / "grub.cfg").write_text(f"linux {places[0]} {arguments}\ninitrd {places[1]}\nboot\n")
    grub = tools / "usr/lib/grub/i386-pc"
    command = [tools / "usr/bin/grub-mkimage", "-d", grub, "-O", "i386-pc", "-p", "(hd0)/"]
    output(*command, "-c", work / "grub.cfg", "-o", work / "core", "biosdisk", "linux", "boot")
    start = (grub / "boot.img").read_bytes() + (work / "core").read_bytes()
    return padded(padded(start, KERNEL_SECTOR * 512) + linux + initial, CYLINDER)


def image(cache: Path) -> None:
    """The boot disk, and the root file system."""
    tools = cache / "tools"
    with tempfile.TemporaryDirectory(dir=cache) as work:
        (cache / "boot.img").write_bytes(boot_disk(tools, Path(work)))
        root = Path(work) / "root"
        fill_root(root, tools)
        used = sum(-(-path.lstat().st_size // 4096) * 4096 for path in root.rglob("*"))
        size = (used * 11 // 10 // CYLINDER + 200) * CYLINDER
        features = "^has_journal,^metadata_csum,^64bit"
        (cache / "root.img").unlink(missing_ok=True)
        command = ["mke2fs", "-q", "-t", "ext4", "-O", features, "-m", "0", "-d", root]
        output(*command, cache / "root.img", f"{size // 1024}k")
        with open(cache / "root.img", "r+b") as file:
            file.truncate(size)


def job_disk(path: Path, checkout: Path, arguments: list[str]) -> None:
    chosen = ("ATEN_", "DNNL_", "ONEDNN_", "TORCH_")
    settings = [f"{k}={v}" for k, v in os.environ.items() if k.startswith(chosen)]
    script = path.with_name("job.sh")
    script.write_text(shlex.join(["exec", "env", *settings, "python", *arguments]) + "\n")
    with tarfile.open(path, "w") as archive:
        for name in ("torch_dnnl", "tests", "pyproject.toml", "setup.py", "README.md"):
            archive.add(checkout / name, name)
        archive.add(HERE / "check.py", "tools/emulator/check.py")
        archive.add(script, "job.sh")
    with open(path, "ab") as file:
        file.truncate(-(-path.stat().st_size // CYLINDER) * CYLINDER)


def run(cache: Path, args: argparse.Namespace) -> int:
    """The job's exit status, or 99 if it did not end."""
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        work = Path(folder)
        job_disk(work / "job.img", args.library_of.resolve(), args.arguments)
        without = f', exclude_features="{args.without}"' if args.without else ""
        lines = [
            BOCHSRC.replace("TOOLS", str(cache / "tools")),
            f"megs: {args.memory}",
            f"cpu: model={args.cpu}, ips=100000000, reset_on_triple_fault=0{without}",
        ]
        disks = {"ata0-master": cache / "boot.img", "ata0-slave": cache / "root.img"}
        for number, (place, path) in enumerate((disks | {"ata1-master": work / "job.img"}).items()):
            geometry = f"cylinders={path.stat().st_size // CYLINDER}, heads=16, spt=63"
            written = f"mode=volatile, journal={work / f'changes{number}'}"
            lines.append(f"{place}: type=disk, path={path}, {geometry}, {written}")
        (work / "bochsrc").write_text("\n".join(lines) + "\n")
        (work / "serial").touch()
        command = [cache / "bochs-3.0/bochs", "-q", "-f", "bochsrc", "-unlock"]
        with (
            open(work / "output", "wb") as file,
            subprocess.Popen(
                command, cwd=work, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            ) as process,
        ):
            try:
                shown, end = 0, time.monotonic() + args.timeout
                while time.monotonic() < end:
                    has_ended = process.poll() is not None
                    text = (work / "serial").read_bytes()
                    print(text[shown:].decode(errors="replace"), end="", flush=True)
                    shown = len(text)
                    if found := re.search(rb"=== exit status (\d+)\s", text):
                        return int(found[1])
                    if has_ended or b"Kernel panic" in text:
                        break
                    time.sleep(0.5)
            finally:
                process.kill()
        print("The job did not end. The emulator's last lines:")
        for path in (work / "output", work / "log"):
            print(*path.read_text(errors="replace").splitlines()[-20:], sep="\n")
        return 99


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=ROOT / "build/emulator", metavar="DIR")
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("build", help=build.__doc__)
    steps.add_parser("image", help=image.__doc__)
    job = steps.add_parser("run", help="run Python with these arguments in the guest")
    job.add_argument("--cpu", default="sapphire_rapids", help="Bochs' name (%(default)s)")
    job.add_argument("--without", metavar="FEATURES", help="Bochs' names, such as amx,avx512fp16")
    job.add_argument("--library-of", type=Path, default=ROOT, metavar="CHECKOUT")
    job.add_argument("--memory", type=int, default=2048, help="MiB of the guest (%(default)s)")
    job.add_argument("--timeout", type=float, default=3600, help="seconds here (%(default)s)")
    job.add_argument("arguments", nargs="+", help="of Python, after --")
    args = parser.parse_args()
    cache = args.cache.resolve()
    if args.step == "run":
        return run(cache, args)
    {"build": build, "image": image}[args.step](cache)
    return 0


if __name__ == "__main__":
    sys.exit(main())
