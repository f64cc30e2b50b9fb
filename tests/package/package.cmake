# The test `package`: cmake -D build=BUILD_DIR -D work=SCRATCH_DIR ... -P package.cmake
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    string(JOIN " " command ${ARGN})
    message(FATAL_ERROR "${command}\nended with ${status}:\n${output}")
  endif()
endfunction()

# Builds and runs the consumer project's program NAME, with more cmake arguments.
function(consume name)
  run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${work}/${name} -G ${generator} -D program=${name}
      -D CMAKE_PREFIX_PATH=${work}/prefix -D CMAKE_CXX_COMPILER=${compiler} -D CMAKE_BUILD_TYPE=${build_type}
      -D CMAKE_CXX_FLAGS=${flags} ${ARGN})
  run(${CMAKE_COMMAND} --build ${work}/${name})
  run(${work}/${name}/${name})
endfunction()

file(REMOVE_RECURSE ${work})
run(${CMAKE_COMMAND} --install ${build} --prefix ${work}/prefix)
foreach(file bin/weir share/weir/configs/countdown.json include/weir/runtime/graph.hpp include/weir/app/main.hpp)
  if(NOT EXISTS ${work}/prefix/${file})
    message(FATAL_ERROR "not installed: ${file}")
  endif()
endforeach()
run(${work}/prefix/bin/weir --version)

consume(one_node -D components=runtime -D CMAKE_DISABLE_FIND_PACKAGE_Torch=ON)
consume(all_parts)
file(REMOVE_RECURSE ${work})  # the installed libraries are large
