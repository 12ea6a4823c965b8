# libquern-cuda.so, which drives NVIDIA GPUs: built where nvcc is found, opened at run time. The
# program and the library do not need it.
set(QN_CUDA auto CACHE STRING "build the library for NVIDIA GPUs: auto (where nvcc is found), on, off")
set(QN_CUDA_ARCHS "80;90a" CACHE STRING "kinds of GPUs that it has code for; later ones get it from PTX of the last")
find_program(QN_NVCC nvcc HINTS /usr/local/cuda/bin)
if(QN_CUDA STREQUAL off OR (QN_CUDA STREQUAL auto AND (NOT QN_NVCC OR QN_SANITIZE OR QN_FUZZ)))
  add_custom_target(quern_cuda) # nothing to build
  return()
endif()
if(NOT QN_NVCC)
  message(FATAL_ERROR "QN_CUDA is on, and there is no nvcc")
endif()

set(codes)
foreach(arch ${QN_CUDA_ARCHS})
  list(APPEND codes -gencode arch=compute_${arch},code=sm_${arch})
endforeach()
list(GET QN_CUDA_ARCHS -1 last)
string(REGEX REPLACE "[a-z]" "" last ${last}) # PTX of 90a runs on no other
list(APPEND codes -gencode arch=compute_${last},code=compute_${last})

# No contraction: as everywhere, fused multiply-adds are those that are written (docs/numbers.md).
set(flags -std=c++20 -O3 -lineinfo -fmad=false -Xfatbin=-compress-all
  -Xcompiler -fPIC,-fvisibility=hidden ${codes}
  -I${CMAKE_SOURCE_DIR}/include -I${CMAKE_SOURCE_DIR}/src)
if("90a" IN_LIST QN_CUDA_ARCHS) # Hopper's own instructions are in no other code
  list(APPEND flags -DQN_CUDA_HAS_90A)
endif()
if(CMAKE_BUILD_TYPE STREQUAL Debug) # a wait that does not end becomes an error
  list(APPEND flags -DQN_CUDA_SPIN_LIMIT=100000000)
endif()
file(GLOB kernels CONFIGURE_DEPENDS src/backends/cuda/kernels/*.cu)
file(GLOB headers CONFIGURE_DEPENDS src/backends/cuda/kernels/*.cuh src/backends/cuda/kernels/*.def
  src/backends/cuda/*.h src/backends/cuda/*.def
  src/backends/*.h src/ir/*.h src/ir/*.def src/quant/*.h src/quant/*.def)
set(parts)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)
foreach(source ${kernels})
  get_filename_component(name ${source} NAME_WE)
  set(part ${CMAKE_BINARY_DIR}/cuda/${name}.o)
  # The compiler keeps the name of the file as it is given: without the folder of this machine.
  file(RELATIVE_PATH given ${CMAKE_SOURCE_DIR} ${source})
  add_custom_command(OUTPUT ${part} COMMAND ${QN_NVCC} ${flags} -c -o ${part} ${given}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    DEPENDS ${source} ${headers} COMMENT "Compiling ${name}.cu" VERBATIM)
  list(APPEND parts ${part})
endforeach()
set(library ${CMAKE_BINARY_DIR}/libquern-cuda.so)
add_custom_command(OUTPUT ${library}
  COMMAND ${QN_NVCC} -shared -cudart static ${codes} -Xlinker --exclude-libs,ALL -o ${library} ${parts}
  DEPENDS ${parts} COMMENT "Linking libquern-cuda.so" VERBATIM)
add_custom_target(quern_cuda ALL DEPENDS ${library})
install(FILES ${library} DESTINATION ${CMAKE_INSTALL_LIBDIR}/quern PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE
  GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
