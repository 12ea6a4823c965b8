# Quern is built by CMake with Ninja; this file is the short way to call them. `make help` lists the targets.
SETUP  = tools/setup.sh
PREFIX = /usr/local
CTEST  = tools/test.sh
BOTH   = address,undefined
ARM64  = -DCMAKE_TOOLCHAIN_FILE=cmake/arm64.cmake -DQN_CUDA=off -DQN_MPI=off

# $(call build,FOLDER,OPTIONS,TARGETS): configures once; Ninja calls CMake again by itself when it has to.
build = @tools/build.sh $(1) "$(2)" $(3)

# What `make run` does when nobody can type.
STORY  = -p "Tell me a short story." -n 80

.PHONY: all run test test-memory test-hostile test-schemas test-large test-arm64 test-deb debug asan ubsan tsan \
    check check-gcc check-clang check-fuzz fuzz bench fmt lint sz install uninstall dist deb clean help setup setup-check
.DEFAULT_GOAL = all

# build the program and the library into build/, and those for GPUs and MPI where there is nvcc and MPI
all: setup
	$(call build,build,,quern quern_static quern_shared quern_cuda quern_mpi pages)

# build, then chat with the bundled model; without a terminal, tell a short story. ARGS="..." replaces the arguments
run: setup
	$(call build,build,,quern)
	@$(if $(ARGS),build/quern run $(ARGS),if [ -t 0 ] && [ -t 1 ]; then build/quern run; else build/quern run $(STORY); fi)

# build and run all tests, or with T=name those whose name contains it
test: setup
	$(call build,build)
	@$(CTEST) build $(T)

# build without optimisation into build-debug/
debug: setup
	$(call build,build-debug,-DCMAKE_BUILD_TYPE=Debug)

# build and test with the address sanitizer
asan: setup
	$(call build,build-asan,-DQN_SANITIZE=address)
	@$(CTEST) build-asan $(T)

# build and test with the undefined behaviour sanitizer
ubsan: setup
	$(call build,build-ubsan,-DQN_SANITIZE=undefined)
	@$(CTEST) build-ubsan $(T)

# build and test with the thread sanitizer
tsan: setup
	$(call build,build-tsan,-DQN_SANITIZE=thread)
	@$(CTEST) build-tsan $(T)

# let memory run out at every allocation of every command, one after the other (a few minutes)
test-memory: setup
	$(call build,build)
	@build/tests/test_cli_memory --list | xargs -P "$$(nproc)" -n 1 build/tests/test_cli_memory --all

# send the server 10,000 requests that mean harm, under the address sanitizer (some minutes)
test-hostile: setup
	$(call build,build-asan,-DQN_SANITIZE=address,test_server_hostile)
	@build-asan/tests/test_server_hostile 10000

# write, open and delete a made-up model of every real shape (11 GB of disk for a moment)
test-large: all
	@tests/large_shapes.sh build/quern $(FOLDER)

# run the published test suite of JSON Schema, which is fetched, against our grammars
test-schemas: all
	$(call build,build,,schema_suite)
	@tools/schema_suite.sh $(FOLDER)

# build for 64-bit ARM, and run the tests in an emulator; those of the kernels on older processors, too (an hour or more)
test-arm64: setup
	@$(SETUP) arm64
	@tools/sysroot.sh arm64 build-arm64/sysroot
	$(call build,build-arm64,$(ARM64))
	@$(CTEST) build-arm64 $(T)
	@[ -n "$(T)" ] || for cpu in cortex-a76 cortex-a53; do echo "as $$cpu:"; QEMU_CPU=$$cpu $(CTEST) build-arm64 test_backends || exit 1; done

# what one runs before a commit: lint, tests under sanitizers with gcc and with clang, a minute of fuzzing
check: lint
	@$(MAKE) --no-print-directory check-gcc
	@$(MAKE) --no-print-directory check-clang
	@$(MAKE) --no-print-directory check-fuzz

# its parts: the tests under sanitizers with gcc
check-gcc: setup
	$(call build,build-check-gcc,-DCMAKE_C_COMPILER=gcc -DQN_SANITIZE=$(BOTH))
	@$(CTEST) build-check-gcc $(T)

# the tests under sanitizers with clang
check-clang: setup setup-check
	$(call build,build-check-clang,-DCMAKE_C_COMPILER=clang -DQN_SANITIZE=$(BOTH))
	@$(CTEST) build-check-clang $(T)

# a minute of fuzzing
check-fuzz: fuzz
	@tools/fuzz.sh 60

# build the fuzz targets with clang into build-fuzz/
fuzz: setup-check
	$(call build,build-fuzz,-DCMAKE_C_COMPILER=clang -DQN_FUZZ=ON -DQN_SANITIZE=$(BOTH),fuzz)
	@echo "run all of them for S seconds in total: tools/fuzz.sh S; one of them: tools/fuzz.sh S NAME"

# build and run the benchmarks; each prints CSV
bench: setup
	$(call build,build)
	@for b in build/bench/bench_*; do echo "# $${b##*/}"; $$b $(ARGS) || exit 1; done

# bring all sources into one form
fmt: setup-check
	@tools/lint.sh fmt

# check form, static analysis, layers, sizes and house rules
lint: all setup-check
	@tools/lint.sh

# print lines of each folder and rows of each table
sz:
	@tools/sz.sh

# install program, libraries, header, manuals, Python package, and what pkg-config and CMake read, under PREFIX (/usr/local)
install: all
	@cmake --install build --prefix $(PREFIX) --strip

# remove what `make install` put under PREFIX
uninstall: all
	@tools/uninstall.sh build $(PREFIX)

# write the source tarball of the last commit into build-dist/
dist:
	@tools/dist.sh build-dist

# build the Debian packages of the last commit into build-deb/, and check them with lintian
deb: setup
	@$(SETUP) package
	@tools/deb.sh

# install, try and remove the packages of build-deb/ in a fresh Debian (root, a network, some minutes)
test-deb:
	@$(SETUP) package
	@tests/deb_test.sh build-deb

# remove everything that was built
clean:
	@rm -rf build build-*

# list these targets
help:
	@awk '/^# / { text = substr($$0, 3); next } \
	    /^[a-z0-9-]+:/ && text { sub(/:.*/, ""); printf "make %-11s %s\n", $$0, text } { text = "" }' Makefile

setup:
	@$(SETUP)

setup-check:
	@$(SETUP) check
