# Which compiler flags a kernel file gets is said by its name alone: src/ops/<op>/<isa>.cc. The flags of an ISA include
# those of the ISAs it builds on. Nothing is ever built for the CPU of the build machine.

set(tessera_all_isas scalar avx2 avx512 avx512bf16)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(tessera_isas scalar avx2 avx512 avx512bf16)
  set(avx2_flags -mavx2 -mfma -mf16c)
  if(TESSERA_EMULATE_AVX512)
    set(avx512_flags ${avx2_flags})
    set(avx512bf16_flags ${avx2_flags})
  else()
    set(avx512_flags ${avx2_flags} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
    set(avx512bf16_flags ${avx512_flags} -mavx512bf16)
  endif()
else()
  set(tessera_isas scalar)
endif()

# Moves the kernel files out of the list named `all` into the list named `kernels`, drops those of other architectures, and
# sets their flags.
function(tessera_split_isa_sources all kernels)
  set(rest ${${all}})
  set(moved)
  foreach(isa ${tessera_all_isas})
    set(files ${rest})
    list(FILTER files INCLUDE REGEX "/${isa}\\.cc$")
    list(FILTER rest EXCLUDE REGEX "/${isa}\\.cc$")
    if(files AND isa IN_LIST tessera_isas)
      set_source_files_properties(${files} PROPERTIES COMPILE_OPTIONS "${${isa}_flags}")
      list(APPEND moved ${files})
    endif()
  endforeach()
  set(${all} ${rest} PARENT_SCOPE)
  set(${kernels} ${moved} PARENT_SCOPE)
endfunction()
