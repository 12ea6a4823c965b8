#define _GNU_SOURCE // CLONE_THREAD
#include "server/sandbox.h"

#include <errno.h>
#include <sched.h>
#include <seccomp.h>
#include <string.h>
#include <sys/prctl.h>

// A list of what is denied, and not of what is allowed: what the C library and drivers of devices
// call differs from version to version, and a call that was forgotten would end a server that has
// run for weeks.
static const int denied[] = {
    // other programs and processes (threads are below)
    SCMP_SYS(execve),
    SCMP_SYS(execveat),
    SCMP_SYS(fork),
    SCMP_SYS(vfork),
    SCMP_SYS(ptrace),
    SCMP_SYS(process_madvise),
    SCMP_SYS(pidfd_open),
    SCMP_SYS(pidfd_getfd),
    SCMP_SYS(pidfd_send_signal),
    SCMP_SYS(kcmp),
    SCMP_SYS(kill),
    SCMP_SYS(tkill),
    // further addresses to listen on
    SCMP_SYS(listen),
    // who one is
    SCMP_SYS(setuid),
    SCMP_SYS(setgid),
    SCMP_SYS(setreuid),
    SCMP_SYS(setregid),
    SCMP_SYS(setresuid),
    SCMP_SYS(setresgid),
    SCMP_SYS(setfsuid),
    SCMP_SYS(setfsgid),
    SCMP_SYS(setgroups),
    SCMP_SYS(capset),
    SCMP_SYS(chroot),
    SCMP_SYS(unshare),
    SCMP_SYS(setns),
    SCMP_SYS(personality),
    SCMP_SYS(keyctl),
    SCMP_SYS(add_key),
    SCMP_SYS(request_key),
    // file systems and what files may do
    SCMP_SYS(mount),
    SCMP_SYS(umount2),
    SCMP_SYS(pivot_root),
    SCMP_SYS(move_mount),
    SCMP_SYS(open_tree),
    SCMP_SYS(fsopen),
    SCMP_SYS(fsconfig),
    SCMP_SYS(fsmount),
    SCMP_SYS(fspick),
    SCMP_SYS(mount_setattr),
    SCMP_SYS(swapon),
    SCMP_SYS(swapoff),
    SCMP_SYS(quotactl),
    SCMP_SYS(mknod),
    SCMP_SYS(mknodat),
    SCMP_SYS(chmod),
    SCMP_SYS(fchmod),
    SCMP_SYS(fchmodat),
    SCMP_SYS(chown),
    SCMP_SYS(fchown),
    SCMP_SYS(lchown),
    SCMP_SYS(fchownat),
    SCMP_SYS(symlink),
    SCMP_SYS(symlinkat),
    SCMP_SYS(setxattr),
    SCMP_SYS(lsetxattr),
    SCMP_SYS(fsetxattr),
    SCMP_SYS(name_to_handle_at),
    SCMP_SYS(open_by_handle_at),
    SCMP_SYS(fanotify_init),
    // the kernel and the machine
    SCMP_SYS(init_module),
    SCMP_SYS(finit_module),
    SCMP_SYS(delete_module),
    SCMP_SYS(kexec_load),
    SCMP_SYS(kexec_file_load),
    SCMP_SYS(bpf),
    SCMP_SYS(perf_event_open),
    SCMP_SYS(userfaultfd),
    SCMP_SYS(io_uring_setup),
    SCMP_SYS(io_uring_enter),
    SCMP_SYS(io_uring_register),
    SCMP_SYS(reboot),
    SCMP_SYS(sethostname),
    SCMP_SYS(setdomainname),
    SCMP_SYS(settimeofday),
    SCMP_SYS(clock_settime),
    SCMP_SYS(clock_adjtime),
    SCMP_SYS(adjtimex),
    SCMP_SYS(acct),
    SCMP_SYS(syslog),
    SCMP_SYS(vhangup),
    SCMP_SYS(iopl),
    SCMP_SYS(ioperm),
    SCMP_SYS(modify_ldt),
};

// The same for a server that calls nobody: its address is open.
static const int denied_out[] = {SCMP_SYS(socket), SCMP_SYS(socketpair), SCMP_SYS(connect),
                                 SCMP_SYS(bind)};

// The same for a server that no other rank reads long messages from, on the same machine.
static const int denied_memory[] = {SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev)};

// Threads are made by clone with CLONE_THREAD, processes without. The flags of clone3 are in
// memory, where no filter sees them: the C library takes clone where there is no clone3.
static int deny_processes(scmp_filter_ctx filter) {
    const int code =
        seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                         SCMP_A0(SCMP_CMP_MASKED_EQ, (scmp_datum_t)CLONE_THREAD, (scmp_datum_t)0));
    return code ? code : seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
}

static int deny(scmp_filter_ctx filter, const int *calls, size_t n) {
    int code = 0;
    for (size_t i = 0; !code && i < n; i++) {
        if (calls[i] < 0) continue; // this machine has no such call
        code = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), calls[i], 0);
    }
    return code;
}

static int fill(scmp_filter_ctx filter, const qn_sandbox_opts *opts) {
    int code = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1); // the other threads, too
    if (!code) code = deny(filter, denied, sizeof denied / sizeof *denied);
    if (!code && !opts->calls_out && !opts->has_ranks)
        code = deny(filter, denied_out, sizeof denied_out / sizeof *denied_out);
    if (!code && !opts->has_ranks)
        code = deny(filter, denied_memory, sizeof denied_memory / sizeof *denied_memory);
    if (!code) code = deny_processes(filter);
    return code ? code : seccomp_load(filter);
}

qn_status qn_sandbox_enter(const qn_sandbox_opts *opts, qn_err *err) {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return QN_FAIL(err, UNSUPPORTED, "cannot give up privileges: %s", strerror(errno));
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    if (!filter) return QN_NOMEM(err, "a filter of system calls");
    const int code = fill(filter, opts);
    seccomp_release(filter);
    if (code == -ENOMEM) return QN_NOMEM(err, "a filter of system calls");
    if (code) return QN_FAIL(err, UNSUPPORTED, "cannot filter system calls: %s", strerror(-code));
    return QN_OK;
}
