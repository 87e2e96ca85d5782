// p2p measures copies between every two CUDA devices with the driver alone, as a
// check on vmmbench p2p.
//
//   p2p [MiB of a copy [rounds]]
//
// It prints a report of vmmbench, as ndjson without statistics, for vmmbench compare: a
// case for each ordered pair, kind of memory and direction, under the name that vmmbench
// has for it.
//
// from copies, on a stream of its own, between its memory and that of to. none is
// plain memory without peer access, enable is plain memory with it, vmm is mapped
// memory with access set for both. write goes to the other's memory, read comes
// from it, both is either device writing to the other's at once. Each sample is a round
// by the device's clock, after three rounds to warm up; every byte of one more copy, into
// memory that held something else, is compared first.
#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

void check(CUresult got, const char *call, int line) {
	if (got == CUDA_SUCCESS)
		return;
	const char *text = nullptr;
	if (cuGetErrorString(got, &text) != CUDA_SUCCESS || text == nullptr)
		text = "unknown error";
	std::fprintf(stderr, "p2p: line %d: %s: %s (%d)\n", line, call, text, static_cast<int>(got));
	std::exit(1);
}
#define CU(call) check((call), #call, __LINE__)

constexpr int warmUps = 3;
constexpr int copiesInRound = 4; // so that beginning one counts for little
constexpr unsigned char poison = 0xa5;

struct Device {
	CUdevice id;
	CUcontext ctx;
};

// Current makes a device's context current for as long as it lives.
struct Current {
	explicit Current(const Device &d) { CU(cuCtxPushCurrent(d.ctx)); }
	~Current() {
		CUcontext old;
		CU(cuCtxPopCurrent(&old));
	}
	Current(const Current &) = delete;
	Current &operator=(const Current &) = delete;
};

// Memory is memory of one device: plain, or mapped with access for all in users.
class Memory {
public:
	Memory(const Device &owner, size_t size) : owner_(owner), size_(size) {
		Current c(owner_);
		CU(cuMemAlloc(&ptr, size_));
	}
	Memory(const Device &owner, size_t size, const std::vector<Device> &users) : owner_(owner), mapped_(true) {
		CUmemAllocationProp prop{};
		prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
		prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		prop.location.id = owner.id;
		size_t granularity = 0;
		CU(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
		size_ = (size + granularity - 1) / granularity * granularity;
		CU(cuMemAddressReserve(&ptr, size_, 0, 0, 0));
		CU(cuMemCreate(&handle_, size_, &prop, 0));
		CU(cuMemMap(ptr, size_, 0, handle_, 0));
		std::vector<CUmemAccessDesc> access;
		for (const Device &d : users) {
			CUmemAccessDesc one{};
			one.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
			one.location.id = d.id;
			one.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
			access.push_back(one);
		}
		CU(cuMemSetAccess(ptr, size_, access.data(), access.size()));
	}
	~Memory() {
		Current c(owner_);
		if (!mapped_) {
			CU(cuMemFree(ptr));
			return;
		}
		CU(cuMemUnmap(ptr, size_));
		CU(cuMemRelease(handle_));
		CU(cuMemAddressFree(ptr, size_));
	}
	Memory(const Memory &) = delete;
	Memory &operator=(const Memory &) = delete;

	void fill(const unsigned char *from, size_t n) const {
		Current c(owner_);
		CU(cuMemcpyHtoD(ptr, from, n));
		CU(cuCtxSynchronize());
	}
	void wipe(size_t n) const {
		Current c(owner_);
		CU(cuMemsetD8(ptr, poison, n));
		CU(cuCtxSynchronize());
	}
	void read(unsigned char *to, size_t n) const {
		Current c(owner_);
		CU(cuMemcpyDtoH(to, ptr, n));
	}

	CUdeviceptr ptr = 0;

private:
	Device owner_;
	size_t size_ = 0;
	bool mapped_ = false;
	CUmemGenericAllocationHandle handle_ = 0;
};

struct Copy {
	const Memory *dst, *src;
};

// Host is what is copied, and a buffer to read it back into.
struct Host {
	unsigned char *data = nullptr, *back = nullptr;
	size_t size;

	Host(const Device &d, size_t n) : size(n) {
		Current c(d);
		CU(cuMemHostAlloc(reinterpret_cast<void **>(&data), n, CU_MEMHOSTALLOC_PORTABLE));
		CU(cuMemHostAlloc(reinterpret_cast<void **>(&back), n, CU_MEMHOSTALLOC_PORTABLE));
		uint64_t x = 0x243f6a8885a308d3u;
		for (size_t i = 0; i + 8 <= n; i += 8) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			std::memcpy(data + i, &x, 8);
		}
	}
};

// Runner does up to two copies at once, the first on a stream of from's and the
// second on one of to's, and returns the milliseconds that both took by from's clock.
class Runner {
public:
	Runner(const Device &from, const Device &to) : from_(from), to_(to) {
		{
			Current c(to_);
			CU(cuStreamCreate(&theirs_, CU_STREAM_NON_BLOCKING));
			CU(cuEventCreate(&done_, CU_EVENT_DISABLE_TIMING));
		}
		Current c(from_);
		for (int i = 0; i < 2; i++) {
			CU(cuStreamCreate(&stream_[i], CU_STREAM_NON_BLOCKING));
			CU(cuEventCreate(&end_[i], CU_EVENT_DEFAULT));
		}
		CU(cuEventCreate(&start_, CU_EVENT_DEFAULT));
	}
	~Runner() {
		{
			Current c(from_);
			for (int i = 0; i < 2; i++) {
				CU(cuEventDestroy(end_[i]));
				CU(cuStreamDestroy(stream_[i]));
			}
			CU(cuEventDestroy(start_));
		}
		Current c(to_);
		CU(cuEventDestroy(done_));
		CU(cuStreamDestroy(theirs_));
	}
	Runner(const Runner &) = delete;
	Runner &operator=(const Runner &) = delete;

	double run(const std::vector<Copy> &copies, size_t n, int times) const {
		const bool two = copies.size() > 1;
		Current c(from_);
		CU(cuEventRecord(start_, stream_[0]));
		if (two) {
			Current other(to_);
			CU(cuStreamWaitEvent(theirs_, start_, 0));
		}
		for (int k = 0; k < times; k++) {
			CU(cuMemcpyAsync(copies[0].dst->ptr, copies[0].src->ptr, n, stream_[0]));
			if (two) {
				Current other(to_);
				CU(cuMemcpyAsync(copies[1].dst->ptr, copies[1].src->ptr, n, theirs_));
			}
		}
		CU(cuEventRecord(end_[0], stream_[0]));
		if (two) {
			{
				Current other(to_);
				CU(cuEventRecord(done_, theirs_));
			}
			CU(cuStreamWaitEvent(stream_[1], done_, 0));
			CU(cuEventRecord(end_[1], stream_[1]));
		}
		double took = 0;
		for (size_t i = 0; i < copies.size(); i++) {
			CU(cuEventSynchronize(end_[i]));
			float ms = 0;
			CU(cuEventElapsedTime(&ms, start_, end_[i]));
			took = std::max(took, static_cast<double>(ms));
		}
		return took;
	}

private:
	Device from_, to_;
	CUstream stream_[2], theirs_;
	CUevent start_, end_[2], done_;
};

void verify(const Runner &runner, const std::vector<Copy> &copies, const Host &host, const std::string &what) {
	for (const Copy &c : copies)
		c.dst->wipe(host.size);
	runner.run(copies, host.size, 1);
	for (const Copy &c : copies) {
		std::memset(host.back, 0, host.size);
		c.dst->read(host.back, host.size);
		if (std::memcmp(host.back, host.data, host.size) == 0)
			continue;
		size_t at = 0;
		while (host.back[at] == host.data[at])
			at++;
		std::fprintf(stderr, "p2p: %s: byte %zu is %#x, want %#x\n", what.c_str(), at, host.back[at], host.data[at]);
		std::exit(3);
	}
}

// sizeName is a size as vmmbench prints it.
std::string sizeName(size_t bytes) {
	const size_t mib = bytes >> 20;
	return mib % 1024 == 0 ? std::to_string(mib / 1024) + "GiB" : std::to_string(mib) + "MiB";
}

// print writes a case. samples are nanoseconds for one copy, or for one each way.
void print(const Device &from, const Device &to, const char *kind, const char *direction, size_t n, size_t payload,
	const std::vector<double> &samples) {
	const std::string a = "cuda:" + std::to_string(from.id), b = "cuda:" + std::to_string(to.id);
	std::printf("{\"case\":{\"id\":\"p2p/%s/%s/%s-%s/%s\",", direction, sizeName(n).c_str(), a.c_str(), b.c_str(), kind);
	std::printf("\"axes\":{\"from\":\"%s\",\"to\":\"%s\",\"direction\":\"%s\",\"size\":%zu,\"mem\":\"%s\"},", a.c_str(), b.c_str(),
		direction, n, kind);
	std::printf("\"unit\":\"GB/s\",\"bytes\":%zu,\"status\":\"passed\",\"samples_ns\":[", payload);
	for (size_t i = 0; i < samples.size(); i++)
		std::printf("%s%.1f", i ? "," : "", samples[i]);
	std::printf("]}}\n");
	std::fflush(stdout);
}

// directions measures write, read and both with memory that is there.
void directions(const Device &from, const Device &to, const char *kind, const Memory &mine, const Memory &target,
	const Memory &theirs, const Memory &there, const Host &host, int rounds) {
	mine.fill(host.data, host.size);
	theirs.fill(host.data, host.size);
	const std::string pair = "cuda:" + std::to_string(from.id) + " cuda:" + std::to_string(to.id);
	Runner runner(from, to);
	const Copy write{&there, &mine}, read{&target, &theirs};
	const std::vector<std::pair<const char *, std::vector<Copy>>> all{{"write", {write}}, {"read", {read}}, {"both", {write, read}}};
	for (const auto &[direction, copies] : all) {
		verify(runner, copies, host, pair + " " + kind + " " + direction);
		for (int i = 0; i < warmUps; i++)
			runner.run(copies, host.size, copiesInRound);
		std::vector<double> samples;
		for (int i = 0; i < rounds; i++)
			samples.push_back(runner.run(copies, host.size, copiesInRound) * 1e6 / copiesInRound);
		print(from, to, kind, direction, host.size, host.size * copies.size(), samples);
	}
}

void measure(const Device &from, const Device &to, const Host &host, int rounds) {
	const size_t n = host.size;
	int can = 0;
	CU(cuDeviceCanAccessPeer(&can, from.id, to.id));
	{
		const Memory mine(from, n), target(from, n), theirs(to, n), there(to, n);
		directions(from, to, "none", mine, target, theirs, there, host, rounds);
		if (can) {
			{
				Current c(from);
				CU(cuCtxEnablePeerAccess(to.ctx, 0));
			}
			{
				Current c(to);
				CU(cuCtxEnablePeerAccess(from.ctx, 0));
			}
			directions(from, to, "enable", mine, target, theirs, there, host, rounds);
			{
				Current c(to);
				CU(cuCtxDisablePeerAccess(from.ctx));
			}
			Current c(from);
			CU(cuCtxDisablePeerAccess(to.ctx));
		}
	}
	if (!can) {
		std::fprintf(stderr, "p2p: no path from device %d to %d\n", from.id, to.id);
		return;
	}
	const Memory mine(from, n, {from}), target(from, n, {from, to}), theirs(to, n, {to, from}), there(to, n, {to, from});
	directions(from, to, "vmm", mine, target, theirs, there, host, rounds);
}

// number is an argument, or exit 2.
int number(const char *text) {
	char *end = nullptr;
	const long n = std::strtol(text, &end, 10);
	if (*text == 0 || *end != 0 || n < 1 || n > 1 << 20) {
		std::fprintf(stderr, "usage: p2p [MiB of a copy [rounds]]\n");
		std::exit(2);
	}
	return static_cast<int>(n);
}

} // namespace

int main(int argc, char **argv) {
	const size_t size = static_cast<size_t>(argc > 1 ? number(argv[1]) : 1024) << 20;
	const int rounds = argc > 2 ? number(argv[2]) : 20;
	CU(cuInit(0));
	int count = 0;
	CU(cuDeviceGetCount(&count));
	if (count < 2) {
		std::fprintf(stderr, "p2p: %d device, and a pair takes two\n", count);
		return 77;
	}
	std::vector<Device> devices(static_cast<size_t>(count));
	for (int i = 0; i < count; i++) {
		Device &d = devices[static_cast<size_t>(i)];
		CU(cuDeviceGet(&d.id, i));
		CU(cuDevicePrimaryCtxRetain(&d.ctx, d.id));
	}
	const Host host(devices[0], size);
	std::printf("{\"schema\":\"vmmbench/1\",\"run\":{\"command\":\"testdata/p2p\"}}\n");
	for (const Device &from : devices)
		for (const Device &to : devices)
			if (from.id != to.id)
				measure(from, to, host, rounds);
	{
		Current c(devices[0]);
		CU(cuMemFreeHost(host.data));
		CU(cuMemFreeHost(host.back));
	}
	for (const Device &d : devices)
		CU(cuDevicePrimaryCtxRelease(d.id));
	std::printf("{\"end\":{\"command\":\"testdata/p2p\"}}\n");
	return 0;
}
