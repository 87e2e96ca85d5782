//go:build ignore

// Compiles if cgo/dlpack lays DLPack's structs out as another header does: make abi-check DLPACK_H=path.
#include DLPACK_H
#include "../dlpack.h"

#include <stddef.h>

#define SAME(theirs, field, ours, own) \
	_Static_assert(offsetof(theirs, field) == offsetof(struct ours, own), #theirs "." #field); \
	_Static_assert(sizeof(((theirs *)0)->field) == sizeof(((struct ours *)0)->own), #theirs "." #field)
#define SIZE(theirs, ours) _Static_assert(sizeof(theirs) == sizeof(struct ours), #theirs)
#define NUMBER(name, ours) _Static_assert((name) == (ours), #name)

SIZE(DLTensor, cuvmm_dl_tensor);
SAME(DLTensor, data, cuvmm_dl_tensor, data);
SAME(DLTensor, device.device_type, cuvmm_dl_tensor, device_type);
SAME(DLTensor, device.device_id, cuvmm_dl_tensor, device_id);
SAME(DLTensor, ndim, cuvmm_dl_tensor, ndim);
SAME(DLTensor, dtype.code, cuvmm_dl_tensor, code);
SAME(DLTensor, dtype.bits, cuvmm_dl_tensor, bits);
SAME(DLTensor, dtype.lanes, cuvmm_dl_tensor, lanes);
SAME(DLTensor, shape, cuvmm_dl_tensor, shape);
SAME(DLTensor, strides, cuvmm_dl_tensor, strides);
SAME(DLTensor, byte_offset, cuvmm_dl_tensor, byte_offset);

SIZE(DLManagedTensor, cuvmm_dl_managed);
SAME(DLManagedTensor, dl_tensor, cuvmm_dl_managed, tensor);
SAME(DLManagedTensor, manager_ctx, cuvmm_dl_managed, manager_ctx);
SAME(DLManagedTensor, deleter, cuvmm_dl_managed, deleter);

SIZE(DLManagedTensorVersioned, cuvmm_dl_versioned);
SAME(DLManagedTensorVersioned, version.major, cuvmm_dl_versioned, major);
SAME(DLManagedTensorVersioned, version.minor, cuvmm_dl_versioned, minor);
SAME(DLManagedTensorVersioned, manager_ctx, cuvmm_dl_versioned, manager_ctx);
SAME(DLManagedTensorVersioned, deleter, cuvmm_dl_versioned, deleter);
SAME(DLManagedTensorVersioned, flags, cuvmm_dl_versioned, flags);
SAME(DLManagedTensorVersioned, dl_tensor, cuvmm_dl_versioned, tensor);

#ifdef DLPACK_MAJOR_VERSION // the numbers of tensor.go, and of vmm/dlpack/dtype.go
NUMBER(DLPACK_MAJOR_VERSION, 1);
NUMBER(DLPACK_FLAG_BITMASK_READ_ONLY, 1);
NUMBER(DLPACK_FLAG_BITMASK_IS_COPIED, 2);
NUMBER(kDLCPU, 1);
NUMBER(kDLCUDA, 2);
NUMBER(kDLCUDAHost, 3);
NUMBER(kDLInt, 0);
NUMBER(kDLUInt, 1);
NUMBER(kDLFloat, 2);
NUMBER(kDLBfloat, 4);
NUMBER(kDLComplex, 5);
NUMBER(kDLBool, 6);
#endif
