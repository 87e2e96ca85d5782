// Pairs of devices, and access of a context to another's plain memory.
#include "fake.h"

CUresult cu_device_can_access_peer(int *can, CUdevice from, CUdevice to) {
	ENTER(device_can_access_peer, "from=%d to=%d", from, to);
	TRY(known_device(from));
	TRY(known_device(to));
	*can = from != to && fake.device[from].link[to] != FAKE_NO_PATH; // CUDA does not count a device among its own peers
	return CUDA_SUCCESS;
}

CUresult cu_device_p2p(int *value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to) {
	ENTER(device_p2p, "attribute=%d from=%d to=%d", attribute, from, to);
	TRY(known_device(from));
	TRY(known_device(to));
	if (from == to)
		return CUDA_ERROR_INVALID_DEVICE;
	int link = fake.device[from].link[to];
	switch ((int)attribute) {
	case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
		*value = link != FAKE_NVLINK;
		return CUDA_SUCCESS;
	case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
	case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
		*value = link != FAKE_NO_PATH;
		return CUDA_SUCCESS;
	case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
		*value = link == FAKE_NVLINK;
		return CUDA_SUCCESS;
	}
	violate("attribute %d is not known here", attribute);
	return CUDA_ERROR_INVALID_VALUE;
}

// peer_of is the ordinal of a context that is alive and not dev's own.
static CUresult peer_of(const struct device *dev, CUcontext ctx, int *out) {
	for (*out = 0; *out < fake.devices; ++*out)
		if (ctx == (CUcontext)&fake.device[*out] && fake.device[*out].alive)
			break;
	if (*out == fake.devices) {
		violate("%p is no context that is alive", (void *)ctx);
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	return dev == &fake.device[*out] ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult cu_ctx_enable_peer(CUcontext ctx, unsigned int flags) {
	ENTER(ctx_enable_peer, "peer=%p flags=%u", (void *)ctx, flags);
	struct device *dev;
	int peer;
	TRY(context(&dev));
	TRY(peer_of(dev, ctx, &peer));
	if (flags != 0) {
		violate("flags are %u", flags);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (dev->link[peer] == FAKE_NO_PATH)
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	if (dev->peers & (1u << peer))
		return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	dev->peers |= 1u << peer;
	return CUDA_SUCCESS;
}

CUresult cu_ctx_disable_peer(CUcontext ctx) {
	ENTER(ctx_disable_peer, "peer=%p", (void *)ctx);
	struct device *dev;
	int peer;
	CUresult lost = context(&dev);
	if (lost != CUDA_SUCCESS && lost != CUDA_ERROR_ILLEGAL_ADDRESS)
		return lost;
	TRY(peer_of(dev, ctx, &peer));
	if (!(dev->peers & (1u << peer)))
		return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	dev->peers &= ~(1u << peer);
	return lost;
}

void peers_gone(int dev, bool reset) {
	for (int i = 0; i < MAX_DEVICES; i++) {
		if (!reset && fake.device[i].peers & (1u << dev))
			violate("device %d's context is destroyed while device %d has access to its memory", dev, i);
		if (reset)
			fake.device[i].peers &= ~(1u << dev);
	}
	if (!reset)
		fake.device[dev].outlived += __builtin_popcount(fake.device[dev].peers);
	fake.device[dev].peers = 0;
}

void count_peers(struct fake_count *out) {
	for (int i = 0; i < MAX_DEVICES; i++)
		out->peers += __builtin_popcount(fake.device[i].peers) + fake.device[i].outlived;
}
