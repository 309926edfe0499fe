# SPDX-License-Identifier: Apache-2.0
# Debian packages by cpack, one per component. scripts/package configures for /usr and runs it.
set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL ptc libptc libptc-dev libptcadmin libptcadmin-dev ptc-python)
set(CPACK_PACKAGE_NAME ptc)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(PTC_MAINTAINER "the authors of ptc <ptc@localhost>" CACHE STRING "name and address in the packages, of whoever builds and answers for them")
set(CPACK_PACKAGE_CONTACT "${PTC_MAINTAINER}")
set(CPACK_PACKAGING_INSTALL_PREFIX ${CMAKE_INSTALL_PREFIX})
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=") # a program that was linked with this version runs with later ones
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(scripts ${CMAKE_SOURCE_DIR}/deploy/debian)

set(CPACK_DEBIAN_PTC_PACKAGE_NAME ptc)
set(CPACK_COMPONENT_PTC_DESCRIPTION "state of training jobs, apart from the processes that train
ptcd holds the state of jobs on this node, moves it when the parallel
configuration changes, and starts the ranks; ptcctl asks any of them.")
set(CPACK_DEBIAN_PTC_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_PTC_PACKAGE_DEPENDS
	"systemd | systemd-standalone-sysusers | systemd-sysusers, systemd | systemd-standalone-tmpfiles | systemd-tmpfiles")
set(CPACK_DEBIAN_PTC_PACKAGE_RECOMMENDS fuse3)
set(CPACK_DEBIAN_PTC_PACKAGE_SUGGESTS etcd-server)
set(CPACK_DEBIAN_PTC_PACKAGE_CONTROL_EXTRA ${scripts}/ptc/postinst ${scripts}/ptc/prerm ${scripts}/ptc/postrm ${scripts}/ptc/conffiles)

set(CPACK_DEBIAN_LIBPTC_PACKAGE_NAME libptc1)
set(CPACK_COMPONENT_LIBPTC_DESCRIPTION "what a training process says to ptcd
The C library that trainers link or load; it needs libc only.")
set(CPACK_DEBIAN_LIBPTC_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBPTC_PACKAGE_CONTROL_EXTRA ${scripts}/libptc/triggers)

set(CPACK_DEBIAN_LIBPTC-DEV_PACKAGE_NAME libptc-dev)
set(CPACK_COMPONENT_LIBPTC-DEV_DESCRIPTION "header and link files of libptc
With a static library, a pkg-config file and a CMake package.")
set(CPACK_DEBIAN_LIBPTC-DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBPTC-DEV_PACKAGE_DEPENDS "libptc1 (= ${PROJECT_VERSION})")

set(CPACK_DEBIAN_LIBPTCADMIN_PACKAGE_NAME libptcadmin1)
set(CPACK_COMPONENT_LIBPTCADMIN_DESCRIPTION "control of a cluster of ptcd
The C library for programs that ask daemons what ptcctl asks them, plan
switches without a daemon, and read or write the state of jobs.")
set(CPACK_DEBIAN_LIBPTCADMIN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBPTCADMIN_PACKAGE_CONTROL_EXTRA ${scripts}/libptc/triggers)

set(CPACK_DEBIAN_LIBPTCADMIN-DEV_PACKAGE_NAME libptcadmin-dev)
set(CPACK_COMPONENT_LIBPTCADMIN-DEV_DESCRIPTION "headers and link files of libptcadmin
With a pkg-config file and a CMake package.")
set(CPACK_DEBIAN_LIBPTCADMIN-DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBPTCADMIN-DEV_PACKAGE_DEPENDS "libptcadmin1 (= ${PROJECT_VERSION})")

set(CPACK_DEBIAN_PTC-PYTHON_PACKAGE_NAME ptc-python)
set(CPACK_COMPONENT_PTC-PYTHON_DESCRIPTION "Python package over libptc
Training jobs whose parallelism changes while they run. PyTorch is not
needed to import it, only by its part for PyTorch.")
set(CPACK_DEBIAN_PTC-PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PTC-PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PTC-PYTHON_PACKAGE_DEPENDS "python3 (>= 3.9), libptc1 (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_PTC-PYTHON_PACKAGE_CONTROL_EXTRA ${scripts}/ptc-python/postinst ${scripts}/ptc-python/prerm)
include(CPack)

# Every package says under which terms, and what changed.
find_program(gzip gzip)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/changelog "ptc (${PROJECT_VERSION}) bookworm; urgency=medium\n\n  * Version ${PROJECT_VERSION}.\n\n"
	" -- ${PTC_MAINTAINER}  Thu, 01 Jan 2026 00:00:00 +0000\n")
if(gzip)
	execute_process(COMMAND ${gzip} -9nkf changelog WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR} COMMAND_ERROR_IS_FATAL ANY)
endif()
foreach(pair "ptc ptc" "libptc libptc1" "libptc-dev libptc-dev" "libptcadmin libptcadmin1"
	"libptcadmin-dev libptcadmin-dev" "ptc-python ptc-python")
	separate_arguments(pair)
	list(GET pair 0 component)
	list(GET pair 1 package)
	set(doc ${CMAKE_INSTALL_DATAROOTDIR}/doc/${package})
	install(FILES debian/copyright DESTINATION ${doc} COMPONENT ${component})
	if(gzip)
		install(FILES ${CMAKE_CURRENT_BINARY_DIR}/changelog.gz DESTINATION ${doc} COMPONENT ${component})
	endif()
endforeach()
install(FILES debian/libptc/lintian-overrides DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/lintian/overrides RENAME libptc1 COMPONENT libptc)
install(FILES debian/libptcadmin/lintian-overrides DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/lintian/overrides RENAME libptcadmin1
	COMPONENT libptcadmin)
