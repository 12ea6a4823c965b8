// quern --version: which program this is, for reports of bugs.
#ifndef QN_CLI_VERSION_H
#define QN_CLI_VERSION_H

// "quern 0.1.0" on the first line; below it the commit, the compiler, the levels of this machine's
// CPU and the libraries. Nothing in it depends on when or in which folder it was built.
void qn_version_print(void);

#endif
